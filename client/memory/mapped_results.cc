#include "client/memory/mapped_results.h"

#include <sys/mman.h>

#include "common/file_descriptor.h"
#include "common/shm/pages.h"
#include "common/status_macros.h"

namespace syncgrads::client {

absl::StatusOr<std::shared_ptr<const MappedResults>> MappedResults::Map(
    const FileDescriptor& descriptor) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<const PeerRegion> results,
                             PeerRegion::MapOwn(descriptor));
  std::byte* changeable = nullptr;
  if (const size_t bytes = results->bytes().size(); bytes > 0) {
    changeable = MapPages(descriptor, bytes, PROT_READ, /*flags=*/0);
    // At the same address, which suits huge pages. No memory is reserved for copies of pages,
    // because few programs change results.
    if (changeable != nullptr &&
        mmap(changeable, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             descriptor.get(), 0) == MAP_FAILED) {
      munmap(changeable, bytes);
      changeable = nullptr;
    }
  }
  return std::shared_ptr<const MappedResults>(new MappedResults(std::move(results), changeable));
}

MappedResults::~MappedResults() {
  if (changeable_ != nullptr) munmap(changeable_, bytes().size());
}

void MappedResults::DiscardChanges() const {
  if (changeable_ != nullptr) madvise(changeable_, bytes().size(), MADV_DONTNEED);
}

}  // namespace syncgrads::client
