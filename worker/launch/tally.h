// What the ends of its programs mean for a group.

#ifndef SYNCGRADS_WORKER_LAUNCH_TALLY_H_
#define SYNCGRADS_WORKER_LAUNCH_TALLY_H_

#include <map>
#include <optional>
#include <string>

namespace syncgrads {

enum class Role { kServer, kWorker };

// How one program of the group ended: exactly one of code and signal is set.
struct End {
  Role role;
  int rank;
  std::optional<int> code = {};
  std::optional<int> signal = {};
};

// "worker 2 ended with exit code 3", "server 0 was killed by signal 9 (Killed)".
std::string Describe(const End& end);

// What a worker's death means: it was killed, or its exit code (128 to 255) says
// that the same could succeed another time.
enum class OnWorkerDeath {
  kContinue,  // the others finish without it
  kEndGroup,
  kRestart,  // it is started again, until one has finished
};

// Follows a group to its end.
//
// A group succeeds when all its workers have ended and at least one of them with
// exit code 0; it then leaves 0. It fails when
//   - a server ends with another code than 0, or is killed, and is not started
//     again,
//   - a worker ends with a code of 1 to 127: it failed for good,
//   - a worker dies and the policy is kEndGroup,
//   - the last worker has ended and all of them have died;
// it then leaves the code of the program that failed, 128 + N for signal N. Only
// the first failure counts: what ends after it ends because of it.
//
// Not thread-safe.
class Tally {
 public:
  enum class Verdict { kRunning, kSucceeded, kFailed };

  Tally(int workers, OnWorkerDeath on_worker_death);

  void Add(const End& end);

  // Whether a program that has ended so is to be started again; it is then not
  // added. A worker is started again at most kMaxRestarts times.
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
