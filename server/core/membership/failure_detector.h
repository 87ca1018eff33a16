// Detects the members of a job that have failed: their lease or grace period has ended, they were
// behind the others for longer than step_timeout, or they were not up to date within
// join_timeout.
//
// Once the job has begun, a lost member is reported only while at least one member's heartbeats
// arrive. If none arrive, the fault may be on the coordinator's side (a switch, a paused
// machine), and the job is *abandoned*: nobody is reported until a worker connects.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_FAILURE_DETECTOR_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_FAILURE_DETECTOR_H_

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "server/core/membership/drop_counts.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/membership/membership_dependencies.h"
#include "server/core/membership/state_holders.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_. Takes the locks
// of Pulse, and of Jobs, Job and chunks of server 0, which it only reads.
class FailureDetector {
 public:
  struct Failure {
    MemberId member{};
    DropReason kind{};
    absl::Status reason;
  };

  // The arguments, and everything in `dependencies`, must outlive this object.
  FailureDetector(const JobIdentity& job, const MembershipDependencies& dependencies,
                  JobMembers& members, const StateHolders& holders)
      : job_(job), dependencies_(dependencies), members_(members), holders_(holders) {}
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // The present members that must be dropped now. If no member's heartbeats arrive, the job
  // becomes abandoned instead. `has_begun`, `is_over`: of the job; see JobEpochs.
  std::vector<Failure> Detect(bool has_begun, bool is_over);

  // If the job is abandoned, ends that state: every member gets a new lease.
  void Resume(absl::string_view why);
  bool is_abandoned() const { return abandoned_since_.has_value(); }
  // How long the job has been abandoned; zero if it is not.
  absl::Duration abandoned_for() const;

 private:
  struct Progress {
    // The newest round of the state's group that the member's heartbeats have reported.
    Round newest{};
    // The time since which another member has been ahead; InfiniteFuture while none is.
    absl::Time behind_since = absl::InfiniteFuture();
  };

  // If the job has a step_timeout, updates `progress_` of all present members.
  void UpdateProgress(absl::Time now, bool is_over);
  // Caps the progress that members have reported, before one is dropped for being behind: a
  // wrong report must not make the others look late. The cap is the newest round that is open
  // on this server. If this server has no chunk of the group, it is one round after the
  // slowest member's, since no member is further ahead than that.
  void CapProgress();
  // Whether any member that has a stream has sent a heartbeat recently.
  bool AnyHeartbeat(absl::Time now) const;
  // Why a member must be dropped; nullopt if it must not.
  std::optional<Failure> Check(const JobMember& member, absl::Time now) const;

  const JobIdentity& job_;
  const MembershipDependencies dependencies_;
  JobMembers& members_;
  const StateHolders& holders_;
  // The progress of each present member. Empty if the job has no step_timeout, and until the group
  // of its state is known.
  std::map<MemberId, Progress> progress_;
  std::optional<absl::Time> abandoned_since_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_FAILURE_DETECTOR_H_
