#include "common/private_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace syncgrads {
namespace {

// As many as the kernel follows.
constexpr int kMaxLinks = 40;

// A walk along a path. Each part is opened within the directory before it, so that nobody can
// replace a part after it has been checked.
class Walk {
 public:
  explicit Walk(const std::string& path) : path_(path), rest_(Parts(path)) {
    Enter(AT_FDCWD, path[0] == '/' ? "/" : ".");
  }
  ~Walk() {
    if (directory_ >= 0) close(directory_);
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  absl::Status Run() {
    while (directory_ >= 0 && !rest_.empty()) {
      const std::string part = std::move(rest_.front());
      rest_.pop_front();
      if (absl::Status status = Step(part); !status.ok()) return status;
    }
    if (directory_ < 0) return Failed("opened");
    struct stat status;
    if (fstat(directory_, &status) != 0) return Failed("opened");
    if (status.st_uid != geteuid()) {
      return NotUsed(absl::StrCat("it belongs to user ", status.st_uid,
                                  ", and this process is of user ", geteuid()));
    }
    // For example /dev/shm, if its user is root: without these bits, nobody else could use it.
    const mode_t mode = status.st_mode & 07777;
    if ((mode & (S_IRWXO | S_ISVTX)) != 0 && ((mode & S_ISVTX) != 0 || !IsEmpty())) {
      return NotUsed(absl::StrFormat(
          "it has the mode %04o%s, so that others may be using it. Give the path of a directory "
          "in it, such as %s/syncgrads, or make it private (chmod 0700)",
          mode, (mode & S_ISVTX) != 0 ? "" : " and is not empty", path_));
    }
    if (fchmodat(directory_, ".", 0700, 0) != 0) return Failed("made private");
    return absl::OkStatus();
  }

 private:
  static std::deque<std::string> Parts(absl::string_view path) {
    std::deque<std::string> parts;
    for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      if (part != ".") parts.emplace_back(part);
    }
    return parts;
  }

  absl::Status Failed(absl::string_view what) const {
    return absl::UnavailableError(
        absl::StrCat("directory ", path_, " cannot be ", what, ": ", std::strerror(errno)));
  }

  absl::Status NotUsed(absl::string_view why) const {
    return absl::PermissionDeniedError(absl::StrCat("directory ", path_, " is not used: ", why));
  }

  // Whether the directory has no entries. False if they cannot be read.
  bool IsEmpty() const {
    const int readable = openat(directory_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const entries = readable < 0 ? nullptr : fdopendir(readable);
    if (entries == nullptr) {
      if (readable >= 0) close(readable);
      return false;
    }
    bool is_empty = true;
    while (const dirent* const entry = readdir(entries)) {
      const absl::string_view name = entry->d_name;
      is_empty &= name == "." || name == "..";
    }
    closedir(entries);
    return is_empty;
  }

  // Checks the owner of `part`, which is in the directory `parent`, and whether others can replace
  // it.
  absl::Status CheckPart(const std::string& part, const struct stat& parent, uid_t owner) const {
    const uid_t self = geteuid();
    const bool by_group = (parent.st_mode & S_IWGRP) && parent.st_gid != 0;
    if (!(parent.st_mode & S_IWOTH) && !by_group) return absl::OkStatus();
    if (owner != self && owner != 0) {
      return NotUsed(
          absl::StrCat("\"", part, "\" belongs to user ", owner, ", and this process is of user ",
                       self, ". In the directory that contains it, other users may create files"));
    }
    const bool is_volume =
        parent.st_uid == 0 && device_above_.has_value() && parent.st_dev != *device_above_;
    if ((parent.st_mode & S_ISVTX) || parent.st_uid == self || is_volume) return absl::OkStatus();
    return NotUsed(absl::StrFormat(
        "other users may replace \"%s\", because the directory that contains it has the mode %04o, "
        "owner %d and group %d; this process is of user %d. Set its sticky bit (chmod +t)",
        part, parent.st_mode & 07777, parent.st_uid, parent.st_gid, self));
  }

  void Enter(int at, const char* part) {
    const int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    if (directory_ >= 0) close(directory_);
    directory_ = next;
    errno = error;
  }

  absl::Status Step(const std::string& part) {
    struct stat parent;
    if (fstat(directory_, &parent) != 0) return Failed("opened");
    if (mkdirat(directory_, part.c_str(), 0700) != 0 && errno != EEXIST) return Failed("created");
    struct stat status;
    if (fstatat(directory_, part.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return Failed("opened");
    }
    const absl::Status checked = CheckPart(part, parent, status.st_uid);
    if (!checked.ok()) return checked;
    if (!S_ISLNK(status.st_mode)) {
      device_above_.reset();
      if (part != "..") device_above_ = parent.st_dev;
      // If it has been replaced by a link in the meantime, this fails.
      Enter(directory_, part.c_str());
      return directory_ < 0 ? Failed("opened") : absl::OkStatus();
    }
    return Follow(part);
  }

  absl::Status Follow(const std::string& link) {
    if (++links_ > kMaxLinks) {
      errno = ELOOP;
      return Failed("opened");
    }
    char target[PATH_MAX];
    const ssize_t length = readlinkat(directory_, link.c_str(), target, sizeof target);
    if (length <= 0) return Failed("opened");
    const absl::string_view to(target, static_cast<size_t>(length));
    const std::deque<std::string> parts = Parts(to);
    rest_.insert(rest_.begin(), parts.begin(), parts.end());
    if (to[0] == '/') {
      Enter(AT_FDCWD, "/");
      device_above_.reset();
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  // The parts of the path that have not been walked.
  std::deque<std::string> rest_;
  int directory_ = -1;
  // The device of the directory that contains `directory_`; nullopt if it is not known.
  std::optional<dev_t> device_above_;
  int links_ = 0;
};

}  // namespace

absl::Status MakePrivateDirectory(const std::string& path) {
  if (path.empty()) return absl::UnavailableError("a directory has no path");
  return Walk(path).Run();
}

}  // namespace syncgrads
