// Workers that are threads of one process, kept in step without any service.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/local_optimizer.h"
#include "common/mutex.h"
#include "worker/train/team.h"

namespace syncgrads {

// What one worker put in: nothing, if it skipped.
struct FakeContribution {
  std::optional<std::string> bytes;
  double weight = 1;
};

// A job of `world_size` workers, each of which uses team(rank) from a thread of its
// own. Results are taken in rank order. Serves one group.
//
// Thread-safe.
class FakeJob {
 public:
  explicit FakeJob(uint32_t world_size);
  ~FakeJob();

  Team& team(uint32_t rank);

  // Runs `work` for every rank, each in a thread, until all have returned.
  void Run(const std::function<void(Team&)>& work);

  // From now on, the first number of each of this rank's results has a wrong bit.
  void CorruptResultsOf(uint32_t rank) { corrupted_ = rank; }

  // No team has memory for gradients.
  void RefuseGradients() { refuses_gradients_ = true; }
  // How many tensors were pushed from other memory than that.
  uint64_t pushed_from_elsewhere();

  // Results come one by one: no step is answered before each of its tensors has been
  // waited for. `wait` is told of each such wait, and what it returns is its outcome.
  using OnWait = std::function<absl::Status(uint32_t rank, uint64_t step, TensorId tensor)>;
  void AnswerOneByOne(OnWait wait) { on_wait_ = std::move(wait); }

 private:
  friend class FakeTeamMember;
  friend class FakeGroup;

  struct Exchange {
    std::vector<std::optional<FakeContribution>> from;  // by rank
    size_t arrived = 0;
  };
  struct Step {
    // By tensor and rank.
    std::vector<std::vector<std::optional<FakeContribution>>> from;
    std::vector<std::string> results;
    std::vector<uint32_t> contributors;
    bool closed = false;
  };

  // Everybody's contribution to the named exchange, in rank order.
  absl::StatusOr<std::vector<FakeContribution>> All(uint32_t rank, const std::string& name,
                                                    FakeContribution ours);

  void NotePush(const void* values);
  Step& StepLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCompleteLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t world_size_;
  std::optional<uint32_t> corrupted_;
  OnWait on_wait_;
  bool refuses_gradients_ = false;
  std::vector<std::unique_ptr<Team>> teams_;

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Exchange> exchanges_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<uint32_t, std::string>, int> calls_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> gradients_ ABSL_GUARDED_BY(mutex_);
  uint64_t pushed_from_elsewhere_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<GroupSpec> spec_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Step> steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> ended_ ABSL_GUARDED_BY(mutex_);
  // With an optimizer on the servers: parameters, by tensor.
  std::vector<std::string> parameters_ ABSL_GUARDED_BY(mutex_);
  std::optional<LocalOptimizer> optimizer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_
