// One program that a launcher has started.

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
  // Not 0: the program's standard output is a terminal with so many columns.
  int terminal_columns = 0;
};

// A running program with pipes on its output. The kernel kills it when the thread
// that started it ends, however that happens. It is in a process group of its own:
// a Ctrl-C on the terminal reaches it only if it is handed on.
//
// Not thread-safe; lives and dies on one thread.
class Child {
 public:
  // NotFound if there is no such program.
  static absl::StatusOr<Child> Start(const ChildOptions& options);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  // Kills the program if it still runs.
  ~Child();

  Role role() const { return role_; }
  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Not blocking; -1 after CloseOutput.
  int out() const { return out_; }
  int err() const { return err_; }
  void CloseOutput(int fd);

  bool running() const { return !end_.has_value(); }
  // How the program ended, once it has; asks the kernel.
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
