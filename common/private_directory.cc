#include "common/private_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
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
    if (status.st_uid == geteuid() && fchmodat(directory_, ".", 0700, 0) != 0) {
      return Failed("made private");
    }
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
    if ((parent.st_mode & S_IWOTH) && status.st_uid != geteuid() && status.st_uid != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("directory ", path_, " is not used: \"", part, "\" belongs to user ",
                       status.st_uid, ", and this process is of user ", geteuid(),
                       ". In the directory that contains it, every user may create files"));
    }
    if (!S_ISLNK(status.st_mode)) {
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
    if (to[0] == '/') Enter(AT_FDCWD, "/");
    return absl::OkStatus();
  }

  const std::string& path_;
  // The parts of the path that have not been walked.
  std::deque<std::string> rest_;
  int directory_ = -1;
  int links_ = 0;
};

}  // namespace

absl::Status MakePrivateDirectory(const std::string& path) {
  if (path.empty()) return absl::UnavailableError("a directory has no path");
  return Walk(path).Run();
}

}  // namespace syncgrads
