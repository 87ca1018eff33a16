#include "tests/testing/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads::testing {
namespace {

// Memory is allocated before the fork, because the child must not allocate.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name = std::string(*variable).substr(0, std::string(*variable).find('='));
    if (added.count(name) == 0) variables.push_back(*variable);
  }
  for (const auto& [name, value] : added) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

[[noreturn]] void Become(pid_t parent, int output, int failure, char** args, char** environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  // The test runner may have blocked signals, and the program would inherit this.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  environ = environment;
  execvp(args[0], args);
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

Exit ToExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) return KilledBy(WTERMSIG(wait_status));
  return ExitCode(WEXITSTATUS(wait_status));
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Exit& exit) {
  if (exit.signal.has_value()) return stream << "signal " << *exit.signal;
  return stream << "exit code " << exit.code.value_or(-1);
}

// glibc 2.36 declares pidfd_open() without extern "C", so it cannot be linked from C++.
int OpenPidfd(pid_t pid) { return syscall(SYS_pidfd_open, pid, 0); }

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const ProcessOptions& options) {
  std::vector<std::string> args = {options.program};
  args.insert(args.end(), options.args.begin(), options.args.end());
  std::vector<std::string> environment = Environment(options.environment);
  std::vector<char*> arg_pointers = Pointers(args);
  std::vector<char*> environment_pointers = Pointers(environment);

  int output[2], failure[2];
  if (pipe2(output, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) {
    Become(parent, output[1], failure[1], arg_pointers.data(), environment_pointers.data());
  }
  close(output[1]);
  close(failure[1]);
  int error = 0;
  const bool failed = read(failure[0], &error, sizeof(error)) > 0;
  close(failure[0]);
  if (failed) {
    waitpid(pid, nullptr, 0);
    close(output[0]);
    return absl::NotFoundError(absl::StrCat(options.program, ": ", strerror(error)));
  }
  return std::unique_ptr<Process>(new Process(pid, OpenPidfd(pid), output[0], options.program));
}

Process::Process(pid_t pid, int pidfd, int output_fd, std::string name)
    : pid_(pid),
      pidfd_(pidfd),
      output_fd_(output_fd),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      name_(std::move(name)),
      reader_([this] { ReadOutput(); }) {}

Process::~Process() {
  Kill(SIGKILL);
  HoldOutput(false);
  Wait(absl::InfiniteDuration()).IgnoreError();
  eventfd_write(stop_fd_, 1);  // child processes of the program may still have the pipe open
  reader_.join();
  close(stop_fd_);
  close(output_fd_);
  close(pidfd_);
}

bool Process::ReadSome() {
  pollfd ready = {.fd = output_fd_, .events = POLLIN, .revents = 0};
  if (output_ended_ || poll(&ready, 1, 0) <= 0) return false;
  char buffer[4096];
  const ssize_t length = read(output_fd_, buffer, sizeof(buffer));
  if (length < 0 && errno == EINTR) return true;
  if (length > 0) output_.append(buffer, length);
  if (length <= 0) output_ended_ = true;
  changed_.notify_all();
  return true;
}

void Process::ReadOutput() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !output_held_; });
    }
    pollfd ready[] = {{.fd = output_fd_, .events = POLLIN, .revents = 0},
                      {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
    poll(ready, 2, -1);
    if (ready[0].revents == 0 && ready[1].revents != 0) return;
    std::lock_guard lock(mutex_);
    ReadSome();
    if (output_ended_) return;
  }
}

absl::StatusOr<std::string> Process::WaitForLine(absl::string_view text, absl::Duration timeout) {
  const auto deadline = absl::ToChronoTime(absl::Now() + timeout);
  std::unique_lock lock(mutex_);
  for (bool in_time = true;;) {
    std::vector<std::string> lines = absl::StrSplit(output_, '\n');
    if (!output_ended_) lines.pop_back();  // the last line is incomplete
    for (const std::string& line : lines) {
      if (absl::StrContains(line, text)) return line;
    }
    if (output_ended_) {
      return absl::OutOfRangeError(Describe(absl::StrCat("ended without printing \"", text, "\"")));
    }
    if (!in_time) {
      return absl::DeadlineExceededError(Describe(
          absl::StrCat("has not printed \"", text, "\" in ", absl::FormatDuration(timeout))));
    }
    in_time = changed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
  }
}

absl::StatusOr<Exit> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  pollfd ended = {.fd = pidfd_, .events = POLLIN, .revents = 0};
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    // Waits in slices, because the longest timeout of poll() is 24 days and an infinite one is
    // allowed here.
    const absl::Duration slice = std::clamp(left, absl::ZeroDuration(), absl::Minutes(1));
    const int ready =
        poll(&ended, 1, absl::ToInt64Milliseconds(absl::Ceil(slice, absl::Milliseconds(1))));
    if (ready > 0) break;
    if (left <= absl::ZeroDuration()) {
      std::lock_guard lock(mutex_);
      return absl::DeadlineExceededError(
          Describe(absl::StrCat("still runs after ", absl::FormatDuration(timeout))));
    }
  }
  std::unique_lock lock(mutex_);
  if (!exit_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_) {
      return absl::InternalError(absl::StrCat("waitpid: ", strerror(errno)));
    }
    exit_ = ToExit(status);
  }
  // A child process of the program may keep the pipe open, so the wait for the end of the output
  // has a limit.
  changed_.wait_for(lock, std::chrono::seconds(10), [this] { return output_ended_; });
  // All that the program has printed is in the pipe, also if the reader thread had no processor in
  // this time.
  int unread = 0;
  ioctl(output_fd_, FIONREAD, &unread);
  const size_t whole = output_.size() + static_cast<size_t>(unread);
  while (output_.size() < whole && !output_held_ && ReadSome()) {
  }
  return *exit_;
}

void Process::Kill(int signal) {
  std::lock_guard lock(mutex_);
  if (!exit_.has_value()) kill(pid_, signal);
}

std::string Process::output() const {
  std::lock_guard lock(mutex_);
  return output_;
}

void Process::HoldOutput(bool hold) {
  std::lock_guard lock(mutex_);
  output_held_ = hold;
  changed_.notify_all();
}

std::string Process::Describe(absl::string_view problem) const {
  return absl::StrCat(name_, " ", problem, "; its output:\n", output_);
}

absl::StatusOr<Finished> RunProgram(const ProcessOptions& options, absl::Duration timeout) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Process> process, Process::Start(options));
  SYNCGRADS_ASSIGN_OR_RETURN(Exit exit, process->Wait(timeout));
  return Finished{exit, process->output()};
}

}  // namespace syncgrads::testing
