// A fake of the service: workers are threads of one process, and exchange values in memory.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/local_optimizer.h"
#include "common/mutex.h"
#include "worker/team/team.h"

namespace syncgrads {

// The contribution of one worker. Without `bytes` it skipped.
struct FakeContribution {
  std::optional<std::string> bytes;
  double weight = 1;
};

// A job of `world_size` workers, each of which uses team(rank) from its own thread. Owns the teams.
// Contributions are reduced in rank order. Supports one group.
//
// Thread-safe, but call CorruptResultsOf, RefuseGradients and AnswerOneByOne before the workers
// start.
class FakeJob {
 public:
  explicit FakeJob(uint32_t world_size);
  ~FakeJob();

  Team& team(uint32_t rank);

  // Calls `work` for every rank, each on its own thread, and returns when all calls have returned.
  void Run(const std::function<void(Team&)>& work);

  // From now on WaitStep flips one bit in the first number of each of this rank's results.
  void CorruptResultsOf(uint32_t rank) { corrupted_ = rank; }

  // From now on no team can allocate memory for gradients.
  void RefuseGradients() { refuses_gradients_ = true; }
  // Returns how many tensors were pushed from other memory than AllocateGradients has returned.
  uint64_t pushed_from_elsewhere();

  // The job's learning rate factor is `factor` from this step on. The default is 1.
  void SetRateFactor(uint64_t first_step, double factor) {
    MutexLock lock(mutex_);
    rate_factors_[first_step] = factor;
  }

  // Delivers results one by one: a step counts as answered only when each of its tensors has been
  // waited for. Each of these waits calls `wait`, and fails if `wait` returns an error.
  using OnWait = std::function<absl::Status(uint32_t rank, uint64_t step, TensorId tensor)>;
  void AnswerOneByOne(OnWait wait) { on_wait_ = std::move(wait); }
  // The number of results that Group::NextCompletion has delivered.
  uint64_t early_results();

 private:
  friend class FakeTeamMember;
  friend class FakeGroup;

  struct Exchange {
    std::vector<std::optional<FakeContribution>> from;  // by rank
    size_t arrived = 0;
  };
  struct Step {
    // Indexed by tensor and rank.
    std::vector<std::vector<std::optional<FakeContribution>>> from;
    std::vector<std::string> results;
    std::vector<uint32_t> contributors;
    bool closed = false;
  };

  // Adds `ours` to the exchange with this name. Waits for all ranks and returns their contributions
  // in rank order.
  absl::StatusOr<std::vector<FakeContribution>> All(uint32_t rank, const std::string& name,
                                                    FakeContribution ours);

  void NotePush(const void* values);
  Step& StepLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCompleteLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all ranks have contributed to a tensor.
  bool HasAllLocked(const Step& step, size_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the result of a tensor; returns the number of contributors.
  uint32_t ReduceLocked(const Step& step, size_t tensor, std::string& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double RateFactorLocked(uint64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto next = rate_factors_.upper_bound(step);
    return next == rate_factors_.begin() ? 1 : std::prev(next)->second;
  }
  void CloseLocked(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t world_size_;
  std::optional<uint32_t> corrupted_;
  OnWait on_wait_;
  uint64_t early_results_ ABSL_GUARDED_BY(mutex_) = 0;
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
  // By the first step that has the factor.
  std::map<uint64_t, double> rate_factors_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> ended_ ABSL_GUARDED_BY(mutex_);
  // Used with an optimizer on the servers: the parameters, indexed by tensor.
  std::vector<std::string> parameters_ ABSL_GUARDED_BY(mutex_);
  std::optional<LocalOptimizer> optimizer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_FAKE_TEAM_H_
