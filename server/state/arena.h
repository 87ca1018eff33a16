// The memory of one group's results on one server, shared with workers on the same host. Used
// if results are not kept across a crash; StateFile is used if they are.
//
// There are two sets, so that a round can be written while the round before it is read. A set
// has the values of all chunks, then the first optimizer slot of all chunks, then the second:
//
//   set 0: values of all chunks | slot 0 of all chunks | slot 1 ... | set 1: ...
//
// Every chunk begins at a multiple of 64 bytes.

#ifndef SYNCGRADS_SERVER_STATE_ARENA_H_
#define SYNCGRADS_SERVER_STATE_ARENA_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/shm/region.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// Thread-safe: immutable, except for the contents of the memory. Owned by shared pointers: those
// of the group and of its chunks' slot pools.
class Arena : public SlotSource {
 public:
  static constexpr size_t kSets = 2;

  // `value_bytes` has the size of each chunk's result. All memory is allocated when this
  // returns. `name` and `progress` are passed to SharedRegion::Create.
  //
  // Errors:
  //   ResourceExhausted  the memory cannot be allocated; has the number of bytes. Or there are as
  //                      many arenas as there may be: each has a file descriptor, and all have at
  //                      most an eighth of the process's limit
  static absl::StatusOr<std::shared_ptr<Arena>> Create(
      const std::string& name, absl::Span<const size_t> value_bytes, size_t optimizer_slots,
      const AllocationProgress& progress = nullptr);

  // Makes the slot of a chunk in one of the sets. `position` is the chunk's index in
  // `value_bytes`.
  std::unique_ptr<Slot> MakeSlot(size_t set, size_t position);

  ~Arena() override { --open_; }

  std::vector<StoredSlot> SlotsOf(size_t position) override;
  absl::StatusOr<std::unique_ptr<Slot>> Another(size_t, size_t, size_t) override { return nullptr; }
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const override {
    return region_->ReadOnlyDescriptor();
  }

 private:
  Arena(std::unique_ptr<SharedRegion> region, std::vector<size_t> offsets,
        std::vector<size_t> sizes, size_t set_bytes, size_t optimizer_slots)
      : region_(std::move(region)),
        offsets_(std::move(offsets)),
        sizes_(std::move(sizes)),
        array_bytes_(set_bytes),
        optimizer_slots_(optimizer_slots) {
    ++open_;
  }

  // The number of arenas of the process.
  static inline std::atomic<size_t> open_{0};

  const std::unique_ptr<SharedRegion> region_;
  // For each chunk, its offset within an array of all chunks, and its size.
  const std::vector<size_t> offsets_;
  const std::vector<size_t> sizes_;
  // The size of an array of all chunks.
  const size_t array_bytes_;
  const size_t optimizer_slots_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_ARENA_H_
