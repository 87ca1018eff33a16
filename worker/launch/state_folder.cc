#include "worker/launch/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/private_directory.h"

namespace syncgrads {
namespace {

constexpr char kPrefix[] = "launch-";

// Opens and locks a folder. Returns -1 if another process has the lock or it cannot be
// opened.
int Lock(const std::string& folder) {
  const int lock = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  if (lock >= 0) close(lock);
  return -1;
}

// Removes the folders of launchers that are gone: those that can be locked. Process ids
// are not used, because they are not valid across containers.
void RemoveLeftBehind(const std::filesystem::path& root) {
  std::error_code ignored;
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    if (absl::StartsWith(entry.path().filename().string(), kPrefix)) {
      folders.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& folder : folders) {
    const int lock = Lock(folder.string());
    if (lock < 0) continue;
    std::filesystem::remove_all(folder, ignored);
    close(lock);
  }
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Make(const std::string& memory) {
  const std::filesystem::path root =
      std::filesystem::path(memory) / absl::StrCat("syncgrads-", geteuid());
  if (absl::Status made = MakePrivateDirectory(root.string()); !made.ok()) return made;
  RemoveLeftBehind(root);
  // The folder is locked first and then renamed to the prefix that other launchers look
  // for.
  std::string making = (root / "making-XXXXXX").string();
  if (mkdtemp(making.data()) != nullptr) {
    const std::string path = (root / (kPrefix + making.substr(making.size() - 6))).string();
    const int lock = Lock(making);
    if (lock >= 0 && rename(making.c_str(), path.c_str()) == 0) return StateFolder(path, lock);
    if (lock >= 0) close(lock);
  }
  return absl::UnavailableError(absl::StrCat(
      "cannot create a directory in ", root.string(), " for the servers' state: ", strerror(errno),
      "; to run without saved state, use --server_args=--state=none"));
}

StateFolder::StateFolder(StateFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(other.lock_) {}

StateFolder::~StateFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace syncgrads
