// Data sets in the file system.

#ifndef SYNCGRADS_WORKER_STORAGE_FILE_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_FILE_STORAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "worker/storage/storage.h"

namespace syncgrads {

// Reads files below a root directory. Immutable, so thread-safe.
class FileStorage : public Storage {
 public:
  // Relative paths are relative to `root`, unless it is empty. Absolute paths stay as they are.
  explicit FileStorage(std::string root = "") : root_(std::move(root)) {}

  absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) const override;
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        size_t size) const override;
  absl::StatusOr<bool> IsDirectory(const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& path) const override;
  std::string NameOf(const std::string& path) const override;

 private:
  const std::string root_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_FILE_STORAGE_H_
