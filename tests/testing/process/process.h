// A real program under test: started with arguments, its output read line by
// line, waited for with a deadline, and never left behind.

#ifndef SYNCGRADS_TESTS_TESTING_PROCESS_PROCESS_H_
#define SYNCGRADS_TESTS_TESTING_PROCESS_PROCESS_H_

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncgrads::testing {

// How a program ended: exactly one of the two is set.
struct Exit {
  std::optional<int> code = {};
  std::optional<int> signal = {};
  friend bool operator==(const Exit&, const Exit&) = default;
};
inline Exit ExitCode(int code) { return {.code = code}; }
inline Exit KilledBy(int signal) { return {.signal = signal}; }
// "exit code 3", "signal 9".
std::ostream& operator<<(std::ostream& stream, const Exit& exit);

struct ProcessOptions {
  // Looked for in PATH if there is no "/" in it.
  std::string program;
  std::vector<std::string> args = {};
  // Added to this process's environment, or replacing what is there.
  std::map<std::string, std::string> environment = {};
};

// A started program. Its output and its errors come through one pipe, so that
// their order is kept; its input is empty. It is killed when this object is
// destroyed, or when the thread that started it ends.
//
// Thread-safe.
class Process {
 public:
  // NotFound if there is no such program.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // The first line that contains `text`, of those already printed or still to
  // come. Errors, with all output: DeadlineExceeded, OutOfRange when the output
  // has ended without one.
  absl::StatusOr<std::string> WaitForLine(absl::string_view text, absl::Duration timeout);

  // DeadlineExceeded, with all output, if it still runs then. Can be called again.
  absl::StatusOr<Exit> Wait(absl::Duration timeout);

  // Nothing happens if it has ended.
  void Kill(int signal);

  // Everything printed so far; all of it, once Wait has returned OK.
  std::string output() const;

 private:
  Process(pid_t pid, int pidfd, int output_fd, std::string name);
  void ReadOutput();
  // For error messages.
  std::string Describe(absl::string_view problem) const;

  const pid_t pid_;
  const int pidfd_;
  const int output_fd_;
  const int stop_fd_;  // readable: the reader ends
  const std::string name_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;         // guarded by mutex_
  bool output_ended_ = false;  // guarded by mutex_
  std::optional<Exit> exit_;   // guarded by mutex_

  std::thread reader_;
};

// A descriptor that is readable once the program has ended, whoever started it;
// -1 if there is no such program. For the caller to close.
int OpenPidfd(pid_t pid);

// Runs a program to its end.
struct Finished {
  Exit exit;
  std::string output;
};
absl::StatusOr<Finished> RunProgram(const ProcessOptions& options, absl::Duration timeout);

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_PROCESS_PROCESS_H_
