// The results of one group's chunks on one server, in a file that outlives the
// process: its pages belong to the kernel, so what was published there is kept
// whatever kills the server.
//
// A chunk has two slots in it, so that a round can be written while the one
// before is read. Where more are held, each further one lies in a file of its own
// beside it, "PATH.CHUNK.NUMBER".

#ifndef SYNCGRADS_SERVER_STATE_STATE_FILE_H_
#define SYNCGRADS_SERVER_STATE_STATE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// What a group's file is made for. A file that was made for anything else is not
// opened.
struct StateLayout {
  struct Chunk {
    ChunkId id{};
    size_t value_bytes = 0;
    size_t spans = 0;
    // Of what results in codecs have lost; 0: they are as they are.
    size_t residual_bytes = 0;
  };

  // Of the change that registered the group, unique in a plan.
  uint64_t sequence = 0;
  Generation generation{};
  GroupId group{};
  size_t optimizer_slots = 0;
  // That a result is expected to have at most.
  size_t contributors = 0;
  // Those of this server.
  std::vector<Chunk> chunks;
};

// Thread-safe.
class StateFile : public SlotSource {
 public:
  static constexpr size_t kSets = 2;

  // The size of a group's file.
  static uint64_t BytesFor(const StateLayout& layout);

  // Makes the file, with nothing published. `room` is what there is for it.
  //
  // Errors: as CreateMappedFile
  static absl::StatusOr<std::shared_ptr<StateFile>> Create(const std::string& path,
                                                           const StateLayout& layout,
                                                           uint64_t room);

  // Opens the file and those beside it, and verifies all that is published in
  // them.
  //
  // Errors:
  //   NotFound     there is no such file
  //   DataLoss     it is damaged, or made for something else: names the file,
  //                chunk and round. Nothing in it is to be used
  //   Unavailable  it cannot be read
  static absl::StatusOr<std::shared_ptr<StateFile>> Open(const std::string& path,
                                                         const StateLayout& layout);

  // Deletes the file and those beside it. Who has mapped them keeps them.
  static void Remove(const std::string& path);

  std::vector<StoredSlot> SlotsOf(size_t position) override;
  absl::StatusOr<std::unique_ptr<Slot>> Another(size_t position, size_t value_bytes,
                                                size_t contributors) override;
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const override;

 private:
  StateFile(std::string path, StateLayout layout);

  absl::Status CreateFile(uint64_t room);
  absl::Status OpenFiles();
  // The slots that lie in the file itself.
  void AddSlotsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenFurther(const std::string& path, size_t position)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads what the chunk's slots hold, of which the newest is the one that was
  // published last.
  absl::Status Verify(size_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const StateLayout layout_;
  std::unique_ptr<SharedRegion> region_;

  Mutex mutex_;
  // By position; those that have not been asked for.
  std::vector<std::vector<StoredSlot>> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> further_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<SharedRegion>> further_regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_STATE_FILE_H_
