#include "worker/launch/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
};

bool MakePipe(Pipe& pipe) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe = {ends[0], ends[1]};
  return true;
}

// Makes a pseudo-terminal in place of a pipe, so that a program draws its progress bar.
bool MakeTerminal(int columns, Pipe& pipe) {
  termios raw = {};
  cfmakeraw(&raw);
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = columns;
  if (openpty(&pipe.read, &pipe.write, nullptr, &raw, &size) != 0) return false;
  fcntl(pipe.read, F_SETFD, FD_CLOEXEC);
  fcntl(pipe.write, F_SETFD, FD_CLOEXEC);
  return true;
}

void Close(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

[[noreturn]] void Become(pid_t parent, int out, int err, int failure, char** args) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent has already died
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(args[0], args);
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

absl::StatusOr<Child> Child::Start(const ChildOptions& options) {
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.args.begin(), options.args.end());
  std::vector<char*> args;
  for (std::string& word : words) args.push_back(word.data());
  args.push_back(nullptr);

  Pipe out, err, failure;
  // If no pseudo-terminal is available, the program gets a pipe and prints plain lines.
  const bool made =
      ((options.terminal_columns > 0 && MakeTerminal(options.terminal_columns, out)) ||
       MakePipe(out)) &&
      MakePipe(err) && MakePipe(failure);
  const pid_t parent = getpid();
  const pid_t pid = made ? fork() : -1;
  if (pid == 0) Become(parent, out.write, err.write, failure.write, args.data());
  int error = pid < 0 ? errno : 0;
  Close(out.write);
  Close(err.write);
  Close(failure.write);
  if (pid > 0 && read(failure.read, &error, sizeof(error)) > 0) waitpid(pid, nullptr, 0);
  Close(failure.read);
  if (error != 0) {
    Close(out.read);
    Close(err.read);
    const std::string message = absl::StrCat(options.program, ": ", strerror(error));
    return pid < 0 ? absl::InternalError(message) : absl::NotFoundError(message);
  }
  fcntl(out.read, F_SETFL, O_NONBLOCK);
  fcntl(err.read, F_SETFL, O_NONBLOCK);
  return Child(options, pid, out.read, err.read);
}

Child::Child(const ChildOptions& options, pid_t pid, int out, int err)
    : role_(options.role), rank_(options.rank), pid_(pid), out_(out), err_(err) {}

Child::Child(Child&& other) noexcept
    : role_(other.role_),
      rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      end_(other.end_) {}

Child::~Child() {
  if (pid_ > 0 && running()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Close(out_);
  Close(err_);
}

void Child::CloseOutput(int fd) { Close(fd == out_ ? out_ : err_); }

const std::optional<End>& Child::Reap() {
  int status = 0;
  if (running() && waitpid(pid_, &status, WNOHANG) == pid_) {
    end_ = End{.role = role_, .rank = rank_};
    if (WIFSIGNALED(status)) {
      end_->signal = WTERMSIG(status);
    } else {
      end_->code = WEXITSTATUS(status);
    }
  }
  return end_;
}

void Child::Kill(int signal) {
  if (running()) kill(pid_, signal);
}

}  // namespace syncgrads
