// The results of a group in memory of a server on this host.

#ifndef SYNCGRADS_CLIENT_MEMORY_MAPPED_RESULTS_H_
#define SYNCGRADS_CLIENT_MEMORY_MAPPED_RESULTS_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/shm/region.h"

namespace syncgrads::client {

// Results that a server has sent a descriptor of, mapped twice: for reading, and as memory that
// this process may change. A page that is written becomes this process's own copy, which no server
// and no other worker sees. Unmaps both on destruction. Thread-safe.
class MappedResults {
 public:
  // Maps the results. The descriptor may be closed afterwards. Errors: those of PeerRegion::MapOwn
  static absl::StatusOr<std::shared_ptr<const MappedResults>> Map(const FileDescriptor& descriptor);
  ~MappedResults();
  MappedResults(const MappedResults&) = delete;
  MappedResults& operator=(const MappedResults&) = delete;

  absl::Span<const std::byte> bytes() const { return results_->bytes(); }

  // Returns where the byte at `at`, which is one of bytes(), may be changed; null if the results
  // could be mapped for reading only.
  std::byte* ChangeableAt(const std::byte* at) const {
    return changeable_ == nullptr ? nullptr : changeable_ + (at - bytes().data());
  }
  // Discards this process's copies of pages: ChangeableAt points to the server's values again.
  void DiscardChanges() const;

 private:
  MappedResults(std::shared_ptr<const PeerRegion> results, std::byte* changeable)
      : results_(std::move(results)), changeable_(changeable) {}

  const std::shared_ptr<const PeerRegion> results_;
  std::byte* const changeable_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMORY_MAPPED_RESULTS_H_
