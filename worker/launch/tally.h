// Decides what the end of each program means for a group.

#ifndef SYNCGRADS_WORKER_LAUNCH_TALLY_H_
#define SYNCGRADS_WORKER_LAUNCH_TALLY_H_

#include <map>
#include <optional>
#include <string>

namespace syncgrads {

enum class Role { kServer, kWorker };

// How one program of the group ended. Exactly one of `code` and `signal` is set.
struct End {
  Role role;
  int rank;
  std::optional<int> code = {};
  std::optional<int> signal = {};
};

// "worker 2 ended with exit code 3", "server 0 was killed by signal 9 (Killed)".
std::string Describe(const End& end);

// What happens when a worker dies: it is killed, or exits with a retryable code (128 to
// 255).
enum class OnWorkerDeath {
  // The other workers finish without it.
  kContinue,
  kEndGroup,
  // It is restarted, unless a worker has finished already.
  kRestart,
};

// Derives a group's result from how its programs end. Launch owns one. Not thread-safe.
//
// A group succeeds, with exit code 0, when all its workers have ended and at least one of
// them with exit code 0. It fails when
//   - a server is killed or ends with another code than 0, and is not restarted,
//   - a worker ends with a code of 1 to 127: a permanent failure,
//   - a worker dies and the policy is kEndGroup,
//   - the last worker has ended and all of them have died.
// The exit code is then that of the program that failed, 128 + N for signal N. Only the
// first failure counts, because later ones may be its consequences.
class Tally {
 public:
  enum class Verdict { kRunning, kSucceeded, kFailed };

  Tally(int workers, OnWorkerDeath on_worker_death);

  // Counts a program that has ended and is not restarted.
  void Add(const End& end);

  // Whether the worker that ended in this way is restarted; always false for a server.
  // Counts the restart. Each rank is restarted at most kMaxRestarts times. Do not call
  // Add for a program that is restarted.
  bool Restarts(const End& end);
  static constexpr int kMaxRestarts = 10;

  Verdict verdict() const { return verdict_; }
  // 0 unless the group has failed.
  int exit_code() const { return exit_code_; }

 private:
  void AddServer(const End& end);
  void AddWorker(const End& end);
  void Fail(const End& end);

  const OnWorkerDeath on_worker_death_;
  int workers_running_;
  std::map<int, int> restarts_;  // by rank
  bool any_worker_finished_ = false;
  Verdict verdict_ = Verdict::kRunning;
  int exit_code_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_TALLY_H_
