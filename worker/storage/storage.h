// Where the files of a data set lie.

#ifndef SYNCGRADS_WORKER_STORAGE_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_STORAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncgrads {

// Files under a root, by paths with "/" that are relative to it. Thread-safe.
class Storage {
 public:
  virtual ~Storage() = default;

  // Errors:
  //   NotFound           there is no such file
  //   PermissionDenied   it may not be read
  //   InvalidArgument    it is longer than `max_bytes`, or no file
  //   Unavailable        it could not be reached, in all attempts
  //   others             any other error of the storage, in its words
  virtual absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) const = 0;

  // Whether anything lies below `path`. Errors: as Read, but NotFound.
  virtual absl::StatusOr<bool> IsDirectory(const std::string& path) const = 0;

  // The names of the directories that lie directly in the directory `path`.
  // Errors: as Read.
  virtual absl::StatusOr<std::vector<std::string>> ListDirectories(
      const std::string& path) const = 0;

  // What errors call the file.
  virtual std::string NameOf(const std::string& path) const = 0;
};

// As storage.Read; a file whose name ends in .gz is decompressed, and `max_bytes`
// is the limit of both. Errors: as Read and Gunzip.
absl::StatusOr<std::string> ReadDecompressed(const Storage& storage, const std::string& path,
                                             size_t max_bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_STORAGE_H_
