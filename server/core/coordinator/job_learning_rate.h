// The factor by which one job's learning rates are multiplied: the one that was set last, and the
// members that wait until it applies.
//
//   applies ── Set: the factor is stored ──▶ pending ── an epoch begins ──▶ applies
//
// Each epoch has the factor of its rounds (LearningRate), so that all members and servers use it
// from the same round on.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_LEARNING_RATE_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_LEARNING_RATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/planted_bug.h"
#include "common/signals/membership.h"
#include "server/core/coordinator/group_registrations.h"
#include "server/core/membership/job_epochs.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class JobLearningRate {
 public:
  // The arguments must outlive this object.
  JobLearningRate(const JobIdentity& job, Journal& journal, const JobPlan& plan,
                  JobMembers& members, const JobEpochs& epochs, const GroupRegistrations& groups)
      : job_(job),
        journal_(journal),
        plan_(plan),
        members_(members),
        epochs_(epochs),
        groups_(groups) {}
  JobLearningRate(const JobLearningRate&) = delete;
  JobLearningRate& operator=(const JobLearningRate&) = delete;

  void Restore(const LearningRateSet& rate) {
    if (!IsPlanted(PlantedBug::kRateForgotten)) factor_ = rate.factor;
  }

  // Stores a factor; does nothing if it is the one that was set last. `by` is who sets it, for
  // people to read. Errors: those of Coordinator::SetLearningRate that concern an existing job.
  absl::Status Set(double factor, const std::string& by);
  // Whether the present epoch does not have the factor yet.
  bool is_pending() const { return factor_ != epochs_.present().learning_rate.factor; }
  // Sends the member Done when every server has applied an epoch with the factor. If an earlier
  // request of the member still waits, that one is refused with Aborted.
  void AnswerWhenApplied(MemberId member, uint64_t request);

  // Sets the learning rate of the epoch that is about to begin. Its first rounds are set.
  void Complete(Epoch& next) const;
  // Answers the members that wait, and records the first rounds if the factor has `changed`. Call
  // it when an epoch that Complete has completed has begun.
  void EpochBegun(bool changed);

 private:
  // Whether every remaining member of the epoch has ended its data for all of these groups.
  bool HasEnded(absl::Span<const std::shared_ptr<const GroupPlan>> groups) const;
  void Record(const std::string& text) const;

  const JobIdentity& job_;
  Journal& journal_;
  const JobPlan& plan_;
  JobMembers& members_;
  const JobEpochs& epochs_;
  const GroupRegistrations& groups_;
  double factor_ = 1;
  // The members to answer when the next epoch has begun, with their requests.
  std::map<MemberId, uint64_t> waiting_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_LEARNING_RATE_H_
