// Files whose pages are memory that outlives the process.

#ifndef SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_
#define SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// Bytes that a file in `directory` may take: what its file system has free and,
// where that lies in memory, what this process may take of it.
uint64_t RoomIn(const std::string& directory);

// A new file of so many zeros, instead of any of that name, mapped for writing.
// All of it is there when this returns: a full disk is an error here, and no
// signal later.
//
// Errors:
//   ResourceExhausted  there is less room than that; has both numbers
//   Unavailable        the file cannot be made
absl::StatusOr<std::unique_ptr<SharedRegion>> CreateMappedFile(const std::string& path,
                                                               size_t bytes, uint64_t room);

// A file that is there, mapped for writing.
//
// Errors:
//   NotFound     there is none
//   Unavailable  it cannot be read
absl::StatusOr<std::unique_ptr<SharedRegion>> OpenMappedFile(const std::string& path);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_MAPPED_FILE_H_
