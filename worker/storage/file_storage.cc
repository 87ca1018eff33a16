#include "worker/storage/file_storage.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/base/file.h"

namespace syncgrads {

absl::StatusOr<std::string> FileStorage::Read(const std::string& path, size_t max_bytes) const {
  return ReadFile(NameOf(path), max_bytes);
}

absl::StatusOr<std::string> FileStorage::ReadRange(const std::string& path, uint64_t offset,
                                                   size_t size) const {
  return ReadFileRange(NameOf(path), offset, size);
}

absl::StatusOr<bool> FileStorage::IsDirectory(const std::string& path) const {
  return syncgrads::IsDirectory(NameOf(path));
}

absl::StatusOr<std::vector<std::string>> FileStorage::ListDirectories(
    const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(NameOf(path), error), end; !error && it != end;
       it.increment(error)) {
    if (syncgrads::IsDirectory(it->path().string())) {
      names.push_back(it->path().filename().string());
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat("cannot list ", NameOf(path), ": ", error.message()));
  }
  return names;
}

std::string FileStorage::NameOf(const std::string& path) const { return PathFrom(root_, path); }

}  // namespace syncgrads
