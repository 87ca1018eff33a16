#include "worker/launch/state_folder.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncgrads {
namespace {

constexpr char kPrefix[] = "launch-";

// Of launchers that are no more.
std::vector<std::filesystem::path> LeftBehind(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> left;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    pid_t pid = 0;
    if (!absl::ConsumePrefix(&number, kPrefix) || !absl::SimpleAtoi(number, &pid)) continue;
    if (pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH)) left.push_back(entry.path());
  }
  return left;
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Make(const std::string& memory) {
  const std::filesystem::path root =
      std::filesystem::path(memory) / absl::StrCat("syncgrads-", geteuid());
  const std::filesystem::path own = root / absl::StrCat(kPrefix, getpid());
  std::error_code error;
  for (const std::filesystem::path& left : LeftBehind(root)) {
    std::filesystem::remove_all(left, error);
  }
  error.clear();
  std::filesystem::create_directories(own, error);
  if (!error) std::filesystem::permissions(own, std::filesystem::perms::owner_all, error);
  if (!error) return StateFolder(own.string());
  return absl::UnavailableError(absl::StrCat(
      "the folder ", own.string(), " for the servers' state cannot be made: ", error.message(),
      "; --server_args=--state=none does without"));
}

StateFolder::StateFolder(StateFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}

StateFolder::~StateFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace syncgrads
