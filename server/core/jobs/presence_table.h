// The presences of a job's members on one server.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_TABLE_H_
#define SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_TABLE_H_

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/core/jobs/presence.h"
#include "server/core/plan/roster.h"

namespace syncgrads::server {

// A member keeps its presence when it has gone, for as long as the job knows it: streams that it
// opens later are then refused.
//
// The Job owns it, and calls it without its own locks (ForgetUnless with `change_mutex_` held), on
// any thread. Thread-safe. Presences are called without `mutex_`, except for what calls nobody.
class PresenceTable {
 public:
  // `clock` must outlive this object.
  explicit PresenceTable(const Clock& clock) : clock_(clock) {}

  // Returns the member's presence. If there is none, creates one whose last message is now.
  std::shared_ptr<Presence> Of(MemberId member);
  // Returns the member's presence; null if there is none.
  std::shared_ptr<const Presence> Find(MemberId member) const;

  // Removes the presences of the members that are not in `roster` and have no streams.
  void ForgetUnless(const Roster& roster);

  // Ends the data streams of all members.
  void EndStreams(const absl::Status& reason);

 private:
  const Clock& clock_;

  mutable Mutex mutex_;
  std::map<MemberId, std::shared_ptr<Presence>> presences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_PRESENCE_TABLE_H_
