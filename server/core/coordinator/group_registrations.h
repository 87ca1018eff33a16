// The registration of a job's groups.
//
//   requested ── planned ──▶ prepared on every server ──▶ appended to the plan, and Registered
//                            sent to the worker once every server has applied it
//   requested ── while an epoch is proposed or another group is prepared ──▶ postponed

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRATIONS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRATIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "server/core/coordinator/group_registry.h"
#include "server/core/coordinator/job_dependencies.h"
#include "server/core/coordinator/round_decisions.h"
#include "server/core/membership/job_epochs.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/plan/group_preparation.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class GroupRegistrations {
 public:
  // The arguments, and everything in `dependencies`, must outlive this object.
  GroupRegistrations(const JobIdentity& job, const JobDependencies& dependencies, JobPlan& plan,
                     JobMembers& members, RoundDecisions& decisions, const JobEpochs& epochs)
      : job_(job),
        dependencies_(dependencies),
        plan_(plan),
        members_(members),
        decisions_(decisions),
        epochs_(epochs),
        groups_(job.most_workers(), dependencies.options.group_limits, dependencies.budget) {}
  GroupRegistrations(const GroupRegistrations&) = delete;
  GroupRegistrations& operator=(const GroupRegistrations&) = delete;

  // The number of registered groups. Their ids count from 0.
  size_t size() const { return groups_.size(); }
  // Checks the group of a request. `what` begins the error's message, for example "EndGroup for
  // group".
  //
  // Errors:
  //   InvalidArgument  no group with this id is registered; has the id and the number of groups
  absl::Status CheckGroup(absl::string_view what, GroupId group) const;

  // The groups that the job's learning rate factor applies to, in the order of their ids.
  std::vector<std::shared_ptr<const GroupPlan>> WithLearningRate() const {
    return groups_.WithLearningRate();
  }

  // Restores a group; ignores other changes.
  void Restore(const PlanChange& change);

  // What takes long in a registration of many tensors and can be done without the lock: the
  // comparison with the group that is registered, or the draft of its plan.
  struct Ahead {
    // The group of this name, and the worker that registered it; null if there is none.
    std::shared_ptr<const GroupPlan> registered;
    std::string by;
    // If there is none: for what to draft the plan.
    GroupRegistry::Path path;
    size_t servers = 0;
    // The error of GroupRegistry::CheckSize.
    absl::Status fits;

    // Set by Compute.
    absl::Status agreement;
    std::optional<absl::StatusOr<GroupRegistry::Draft>> draft;

    void Compute(const GroupSpec& spec);
  };
  // Returns what to compute for a group. `bytes` are those of its tensors.
  Ahead LookAhead(const GroupSpec& spec, uint64_t bytes, double link_rate) const;

  // Registers a group that has passed Validate, or answers with the plan of the registered one; see
  // Coordinator::Register. Ignored if the member is unknown or gone. What `ahead` has and still
  // holds is not computed again.
  void Register(MemberId id, uint64_t request, const GroupSpec& spec, double link_rate,
                const Ahead& ahead);
  // Handles what waited for an epoch to begin. Call it when that has happened.
  void Continue();
  // Drops all requests and releases the memory of all groups, because the job is closed.
  void Cancel();

  // A server's progress with the memory of the group that is being prepared; ignored for any
  // other group.
  void Prepared(ServerIndex server, const GroupPrepared& prepared);
  // Requests the memory of that group from a server. Idempotent. Call it when the server has
  // reconnected, since it may have lost the request.
  void PrepareOn(ServerIndex server) const;
  // Sends the progress to the workers that wait for the group, at most once a second.
  void SendProgress();

 private:
  // A member's request for a group that is not registered yet.
  struct Request {
    MemberId member{};
    uint64_t request = 0;
    // Shared by all postponed requests for one group; null in a preparation, which has the plan.
    std::shared_ptr<const GroupSpec> spec;
    double link_rate = 0;
    // The plan's draft; only the first postponed request for a group has one.
    std::optional<GroupRegistry::Draft> draft;
  };
  // A group whose memory is being allocated on the servers.
  struct Preparation {
    uint64_t key = 0;
    std::shared_ptr<const GroupPlan> plan;
    Request request;
    // The progress of every server that has chunks of the group.
    std::map<ServerIndex, GroupPrepared> servers;
    // When workers were last sent the progress.
    absl::Time reported;
  };

  // Whether no new group can be planned now.
  bool MustWait() const;
  // Keeps the request until the proposed epoch has begun and the preparation under way has
  // ended; or refuses it. A retry of a kept request is ignored.
  void Postpone(const JobMember& member, uint64_t request, const GroupSpec& spec, double link_rate,
                const Ahead& ahead);
  // Handles the requests that Postpone has kept.
  void RegisterPostponed();
  // Whether all members and servers exchange payloads through shared memory.
  bool SharesMemory() const;
  // Requests the memory of a group from its servers. Once every server has it, Commit
  // registers the group.
  void Prepare(const Request& request, std::shared_ptr<const GroupPlan> plan);
  // If every server has finished, registers the prepared group, or refuses the request if a
  // server has no memory for it. Does nothing while an epoch is proposed.
  void FinishPreparation();
  void Commit(const Request& request, std::shared_ptr<const GroupPlan> plan, uint64_t key);

  const JobIdentity& job_;
  const JobDependencies dependencies_;
  JobPlan& plan_;
  JobMembers& members_;
  RoundDecisions& decisions_;
  const JobEpochs& epochs_;
  GroupRegistry groups_;
  // Requests that came while an epoch was proposed, because a new group begins in the next
  // epoch, or while another group was being prepared.
  std::vector<Request> postponed_;
  std::optional<Preparation> preparation_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_REGISTRATIONS_H_
