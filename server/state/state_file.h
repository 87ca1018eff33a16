// The results of one group's chunks on one server, in a file. The file's pages belong to the
// kernel: published rounds survive the death of the server process.
//
// Each chunk has two slots in the file, so that a round can be written while the round before it
// is read. If a chunk needs more slots, each further slot lies in a file of its own, CHUNK.NUMBER
// in the directory PATH.further, where CHUNK is the chunk's position. SlotPool deletes a further
// slot's file when it has been idle for long. None of the files keeps a descriptor open.

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
#include "server/state/mapped_file.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// The description of a group's file. A file that was created for another layout is not opened.
struct StateLayout {
  struct Chunk {
    ChunkId id{};
    size_t value_bytes = 0;
    size_t spans = 0;
    // The size of the residual of compressed results; 0 if results are not compressed.
    size_t residual_bytes = 0;
  };

  // The key of the group's results, unique in a plan; see PlanChange::results_key.
  uint64_t sequence = 0;
  Generation generation{};
  GroupId group{};
  // The number of arrays that the group's optimizer has beside the values.
  size_t optimizer_slots = 0;
  // The number of contributors that each record has room for.
  size_t contributors = 0;
  // The group's chunks on this server.
  std::vector<Chunk> chunks;
};

// Thread-safe. Owned by shared pointers: those of the group and of its chunks' slot pools.
class StateFile : public SlotSource {
 public:
  // The number of slots that each chunk has in the file.
  static constexpr size_t kSets = 2;

  // The size of a group's file in bytes.
  static uint64_t BytesFor(const StateLayout& layout);

  // Creates the file, without published rounds. Deletes any file at `path` and its further slots.
  // `room` and `progress` are passed to MappedFile::Create.
  //
  // Errors: those of MappedFile::Create
  static absl::StatusOr<std::shared_ptr<StateFile>> Create(
      const std::string& path, const StateLayout& layout, uint64_t room,
      const AllocationProgress& progress = nullptr);

  // Opens the file and its further slots, and verifies all rounds that are published in them.
  //
  // Errors:
  //   NotFound           there is no file at `path`
  //   DataLoss           a file is damaged, or was created for another layout; names the file,
  //                      chunk and round. The file must not be used
  //   Unavailable        a file cannot be opened
  //   ResourceExhausted  a file cannot be mapped
  static absl::StatusOr<std::shared_ptr<StateFile>> Open(const std::string& path,
                                                         const StateLayout& layout);

  // Deletes the file and its further slots. Existing mappings stay valid.
  static void Remove(const std::string& path);

  std::vector<StoredSlot> SlotsOf(size_t position) override;
  absl::StatusOr<std::unique_ptr<Slot>> Another(size_t position, size_t value_bytes,
                                                size_t contributors) override;
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const override;

 private:
  StateFile(std::string path, StateLayout layout);

  absl::Status CreateFile(uint64_t room, const AllocationProgress& progress);
  absl::Status OpenFiles();
  // Adds the slots that lie in the file itself to slots_.
  void AddSlotsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Opens the file of a further slot and adds the slot to slots_. If the server died while it
  // created the file, deletes the file instead.
  absl::Status OpenFurther(const std::string& path, size_t position)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the records of the chunk's slots into slots_, and checks that the newest round that was
  // published is among them.
  absl::Status Verify(size_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const StateLayout layout_;
  // Set once, by Create or Open.
  std::unique_ptr<MappedFile> region_;

  Mutex mutex_;
  // By position: the slots that SlotsOf has not returned yet.
  std::vector<std::vector<StoredSlot>> slots_ ABSL_GUARDED_BY(mutex_);
  // By position: the number for the next further slot's file.
  std::vector<size_t> further_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_STATE_FILE_H_
