// A storage whose files are in memory.

#ifndef SYNCGRADS_TESTS_FUZZ_MEMORY_STORAGE_H_
#define SYNCGRADS_TESTS_FUZZ_MEMORY_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/storage/storage.h"

namespace syncgrads::fuzz {

class MemoryStorage : public Storage {
 public:
  // `files` has the contents of each file by its path.
  explicit MemoryStorage(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  absl::StatusOr<std::string> Read(const std::string& path, size_t /*max_bytes*/) const override {
    const auto found = files_.find(path);
    if (found == files_.end()) return absl::NotFoundError(absl::StrCat("no such file: ", path));
    return found->second;
  }
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        size_t size) const override {
    const auto found = files_.find(path);
    if (found == files_.end()) return absl::NotFoundError(absl::StrCat("no such file: ", path));
    return offset < found->second.size() ? found->second.substr(offset, size) : std::string();
  }
  absl::StatusOr<bool> IsDirectory(const std::string& /*path*/) const override { return false; }
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& path) const override {
    return absl::NotFoundError(absl::StrCat("no such directory: ", path));
  }
  std::string NameOf(const std::string& path) const override { return path; }

 private:
  const std::map<std::string, std::string> files_;
};

}  // namespace syncgrads::fuzz

#endif  // SYNCGRADS_TESTS_FUZZ_MEMORY_STORAGE_H_
