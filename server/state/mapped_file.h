// Files that are mapped into memory. Their pages belong to the kernel and outlive the process.

#ifndef SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_
#define SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// Returns the bytes that new files in `directory` may take: the free space of its file system
// and, if the file system is in memory, at most the memory that is available to this process.
// Returns 0 if the free space, or the available memory, cannot be read.
uint64_t RoomIn(const std::string& directory);

// Returns the bytes of which RoomIn is a part: the size of the directory's file system, and, if
// that is in memory, at most the memory that this process may allocate. Returns 0 if it is not
// known.
uint64_t SizeOfFileSystem(const std::string& directory);

// A file that is mapped for reading and writing, and unmapped when this object is destroyed. It
// keeps no file descriptor open. Thread-safe: immutable, except for its contents.
class MappedFile {
 public:
  // Creates a file of `bytes` zeros, replacing any existing file. The whole file is allocated
  // when this returns: a full disk is an error here, not a SIGBUS later. `room` is the number of
  // bytes that the file may take. `progress` is as for SharedRegion::Create: called with the
  // bytes allocated so far, on this thread.
  //
  // Errors:
  //   ResourceExhausted  `bytes` is more than `room`, or cannot be allocated or mapped; has both
  //                      numbers
  //   Unavailable        the file cannot be created
  static absl::StatusOr<std::unique_ptr<MappedFile>> Create(
      const std::string& path, size_t bytes, uint64_t room,
      const AllocationProgress& progress = nullptr);

  // Maps an existing file.
  //
  // Errors:
  //   NotFound           there is no file at `path`
  //   Unavailable        the file cannot be opened
  //   ResourceExhausted  the file cannot be mapped
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);

  std::byte* data() const { return region_->data(); }
  size_t size() const { return region_->size(); }

  // Opens the file again for reading only, so that the descriptor can be sent to a peer.
  //
  // Errors:
  //   Unavailable  the file cannot be opened, or its path has been deleted or replaced
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const;

  // Deletes the file. Existing mappings stay valid. Does nothing if the path now belongs to
  // another file.
  void Delete() const;

 private:
  // Identifies a file even if another file has taken its path.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  MappedFile(std::string path, Identity identity, std::unique_ptr<SharedRegion> region)
      : path_(std::move(path)), identity_(identity), region_(std::move(region)) {
    region_->CloseDescriptor();
  }

  // Returns the identity of the open `file`. `path` is for the error message.
  //
  // Errors:
  //   Unavailable  fstat() fails
  static absl::StatusOr<Identity> IdentityOf(const std::string& path, const FileDescriptor& file);

  const std::string path_;
  const Identity identity_;
  const std::unique_ptr<SharedRegion> region_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_
