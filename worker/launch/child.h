// A child process of ps-launch: one server or worker.

#ifndef SYNCGRADS_WORKER_LAUNCH_CHILD_H_
#define SYNCGRADS_WORKER_LAUNCH_CHILD_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/launch/tally.h"

namespace syncgrads {

struct ChildOptions {
  Role role = Role::kWorker;
  int rank = 0;
  std::string program = {};
  std::vector<std::string> args = {};
  // If not 0, the program's standard output is a pseudo-terminal with this many columns;
  // otherwise it is a pipe.
  int terminal_columns = 0;
};

// A running program. Its standard output and standard error are read through out() and
// err(). When the thread that started it ends, for whatever reason, the kernel kills the
// program. The program has its own process group: Ctrl-C on the terminal does not reach
// it, so Launch forwards the signal.
//
// Not thread-safe: one thread creates, uses and destroys it.
class Child {
 public:
  // Starts the program. Errors: NotFound if it cannot be executed; Internal if no pipe or
  // no process can be created.
  static absl::StatusOr<Child> Start(const ChildOptions& options);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  // Kills the program if it is still running.
  ~Child();

  Role role() const { return role_; }
  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // The ends to read the program's output from, non-blocking; -1 after CloseOutput.
  int out() const { return out_; }
  int err() const { return err_; }
  void CloseOutput(int fd);

  bool running() const { return !end_.has_value(); }
  // Polls the kernel and returns how the program ended; nullopt while it runs. Does not
  // block.
  const std::optional<End>& Reap();
  void Kill(int signal);

 private:
  Child(const ChildOptions& options, pid_t pid, int out, int err);

  const Role role_;
  const int rank_;
  pid_t pid_;
  int out_;
  int err_;
  std::optional<End> end_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_CHILD_H_
