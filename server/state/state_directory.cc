#include "server/state/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/private_directory.h"
#include "common/status_macros.h"
#include "server/state/mapped_file.h"
#include "server/state/record_log.h"

namespace syncgrads::server {
namespace {

constexpr char kGroupPrefix[] = "group-";

std::string Reason() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Own(
    const std::string& path, std::function<uint64_t()> room) {
  // Other users must neither read gradients and tokens, nor choose where they are written.
  if (const absl::Status made = MakePrivateDirectory(path); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat("state ", made.message()));
  }
  const std::string lock_path = path + "/lock";
  FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock.valid()) {
    return absl::UnavailableError(absl::StrCat(lock_path, " cannot be opened: ", Reason()));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char owner[32] = "";
    const ssize_t length = pread(lock.get(), owner, sizeof(owner) - 1, 0);
    return absl::FailedPreconditionError(absl::StrCat(
        "state directory ", path, " is in use by process ", length > 0 ? owner : "(unknown)",
        "; this is process ", getpid(), ". Give each server its own directory with --state=DIR"));
  }
  const std::string self = absl::StrCat(getpid());
  // Overwrites the process id of the last owner. On a full disk the file becomes empty: the
  // process id is only shown in error messages.
  const ssize_t written = pwrite(lock.get(), self.data(), self.size(), 0);
  if (ftruncate(lock.get(), std::max<ssize_t>(0, written)) != 0) {
    return absl::UnavailableError(absl::StrCat(lock_path, " cannot be truncated: ", Reason()));
  }
  if (room == nullptr) room = [path] { return RoomIn(path); };
  std::unique_ptr<StateDirectory> directory(
      new StateDirectory(path, std::move(room), std::move(lock)));
  directory->damage_ = directory->ReadServer();
  return directory;
}

std::string StateDirectory::group_path(uint64_t sequence) const {
  return absl::StrCat(path_, "/", kGroupPrefix, sequence);
}

uint64_t StateDirectory::file_system_bytes() const { return SizeOfFileSystem(path_); }

uint64_t StateDirectory::bytes() const {
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(path_, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    // A file may be deleted meanwhile.
    std::error_code gone;
    const bool is_file = entry->is_regular_file(gone);
    const uint64_t size = is_file ? entry->file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

absl::Status StateDirectory::ReadServer() {
  std::vector<std::string> records;
  const auto log = RecordLog::Open(path_ + "/server", records);
  if (absl::IsNotFound(log.status())) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(log.status());
  const std::vector<std::string> fields = absl::StrSplit(records[0], ' ');
  uint64_t starts = 0;
  uint32_t port = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &starts) ||
      !absl::SimpleAtoi(fields[1], &port) || port > 65535) {
    return absl::DataLossError(absl::StrCat(path_, "/server is malformed"));
  }
  start_ = starts + 1;
  last_port_ = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

absl::Status StateDirectory::KeepPort(uint16_t port) const {
  return RecordLog::Create(path_ + "/server", absl::StrCat(start_, " ", port)).status();
}

absl::Status StateDirectory::SetAside() const {
  return MoveAside([](absl::string_view name) {
    return absl::StartsWith(name, "plan") || absl::StartsWith(name, kGroupPrefix);
  });
}

absl::Status StateDirectory::SetAside(const std::vector<uint64_t>& groups) const {
  return MoveAside([&groups](absl::string_view name) {
    if (!absl::ConsumePrefix(&name, kGroupPrefix)) return false;
    // A group may have a directory of further slots, group-N.further (StateFile).
    uint64_t group = 0;
    return absl::SimpleAtoi(name.substr(0, name.find('.')), &group) &&
           std::find(groups.begin(), groups.end(), group) != groups.end();
  });
}

absl::Status StateDirectory::MoveAside(
    absl::FunctionRef<bool(absl::string_view name)> is_moved) const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    std::string name = entry.path().filename().string();
    if (is_moved(name)) names.push_back(std::move(name));
  }
  // What was set aside before stays.
  if (names.empty() && !error) return absl::OkStatus();
  const std::filesystem::path aside = std::filesystem::path(path_) / "unusable";
  std::filesystem::remove_all(aside, error);
  std::filesystem::create_directory(aside, error);
  for (const std::string& name : names) {
    std::filesystem::rename(std::filesystem::path(path_) / name, aside / name, error);
    if (error) break;
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the contents of ", path_, " cannot be moved to another directory: ", error.message()));
}

void StateDirectory::RemoveGroups() const {
  std::error_code ignored;
  std::vector<std::filesystem::path> groups;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (absl::StartsWith(entry.path().filename().string(), kGroupPrefix)) {
      groups.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& group : groups) std::filesystem::remove_all(group, ignored);
}

}  // namespace syncgrads::server
