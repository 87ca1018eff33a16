// The interface to the files of a data set.

#ifndef SYNCGRADS_WORKER_STORAGE_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncgrads {

// Reads files below a root. Paths use "/" and are relative to the root. Thread-safe.
class Storage {
 public:
  virtual ~Storage() = default;

  // Reads a whole file.
  //
  // Errors:
  //   NotFound          there is no such file
  //   PermissionDenied  reading it is not permitted
  //   InvalidArgument   it is longer than `max_bytes`, or not a file
  //   Unavailable       the storage could not be reached in any attempt
  //   others            any other error of the storage, with its message
  virtual absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) const = 0;

  // Reads the `size` bytes of a file from `offset` on; fewer if the file ends before. Errors: those
  // of Read.
  virtual absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                                size_t size) const = 0;

  // Whether `path` is a directory; in a storage without directories, whether there are files
  // below it. Errors: those of Read, except NotFound.
  virtual absl::StatusOr<bool> IsDirectory(const std::string& path) const = 0;

  // Returns the names of the directories that are directly in the directory `path`. Errors:
  // those of Read.
  virtual absl::StatusOr<std::vector<std::string>> ListDirectories(
      const std::string& path) const = 0;

  // The file's name in errors.
  virtual std::string NameOf(const std::string& path) const = 0;
};

// Whether an error of Storage::Read may mean that there is no such file. Stores whose files may not
// be listed deny access to a file that does not exist.
bool IsMissing(const absl::Status& status);

// Reads a file with storage.Read and, if its name ends in .gz, decompresses it. `max_bytes`
// limits the compressed and the decompressed size. Errors: those of Read and Gunzip.
absl::StatusOr<std::string> ReadDecompressed(const Storage& storage, const std::string& path,
                                             size_t max_bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_STORAGE_H_
