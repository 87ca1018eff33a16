// Runs a real program as a child process: reads its output, waits for it with a deadline, and kills
// it at the end of the test.

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

// How a program ended. Exactly one of the two fields is set.
struct Exit {
  std::optional<int> code = {};
  std::optional<int> signal = {};
  friend bool operator==(const Exit&, const Exit&) = default;
};
inline Exit ExitCode(int code) { return {.code = code}; }
inline Exit KilledBy(int signal) { return {.signal = signal}; }
// Prints "exit code 3" or "signal 9".
std::ostream& operator<<(std::ostream& stream, const Exit& exit);

struct ProcessOptions {
  // Searched in PATH if it contains no "/".
  std::string program;
  std::vector<std::string> args = {};
  // Added to the environment of this process. An existing variable of the same name is replaced.
  std::map<std::string, std::string> environment = {};
};

// A running program. Its stdout and stderr are read through one pipe, so that their order is kept.
// Its stdin is empty. The program is killed when this object is destroyed, or when the thread that
// started it ends.
//
// Thread-safe.
class Process {
 public:
  // Returns NotFound if the program does not exist or cannot be executed.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // Blocks until the output has a line that contains `text`, and returns the first such line. Lines
  // that were printed before the call count.
  //
  // Errors; each message has the whole output:
  //   DeadlineExceeded  no such line within `timeout`
  //   OutOfRange        the output has ended without such a line
  absl::StatusOr<std::string> WaitForLine(absl::string_view text, absl::Duration timeout);

  // Blocks until the program has ended. Can be called several times. Returns DeadlineExceeded, with
  // the whole output, if the program still runs after `timeout`.
  absl::StatusOr<Exit> Wait(absl::Duration timeout);

  // Sends a signal to the program. Does nothing if Wait() has already returned its exit status.
  void Kill(int signal);

  // Returns the output so far. It is complete once Wait() has returned OK.
  std::string output() const;

  // If `hold` is true, stops reading the output; if false, continues. While the pipe is full, the
  // program blocks when it prints. Up to one more read may happen after a call with true.
  void HoldOutput(bool hold);

 private:
  Process(pid_t pid, int pidfd, int output_fd, std::string name);
  void ReadOutput();
  // Reads a part of the output if there is one, and returns whether there was, or whether the
  // output has ended just now. Does not block. mutex_ must be held.
  bool ReadSome();
  // Returns an error message with `problem` and the output so far. mutex_ must be held.
  std::string Describe(absl::string_view problem) const;

  const pid_t pid_;
  const int pidfd_;
  const int output_fd_;
  const int stop_fd_;  // when it is readable, the reader thread ends
  const std::string name_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;         // guarded by mutex_
  bool output_ended_ = false;  // guarded by mutex_
  bool output_held_ = false;   // guarded by mutex_
  std::optional<Exit> exit_;   // guarded by mutex_

  std::thread reader_;
};

// Returns a file descriptor that becomes readable when the program has ended; -1 if there is no
// such process. The process need not be a child. The caller closes the descriptor.
int OpenPidfd(pid_t pid);

// Runs a program until it ends, and returns its output. Errors as Process::Start and Process::Wait.
struct Finished {
  Exit exit;
  std::string output;
};
absl::StatusOr<Finished> RunProgram(const ProcessOptions& options, absl::Duration timeout);

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_PROCESS_PROCESS_H_
