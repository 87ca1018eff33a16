// The coordinator's connection to one member: its Join stream.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_
#define SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_

#include <memory>

#include "common/ids.h"
#include "common/membership.h"
#include "common/signals.h"

namespace syncgrads::server {

// Thread-safe. Send and SendEpoch only queue; they never block and never call back, because they
// are called while Coordinator::mutex_ is held.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void Send(Generation generation, const JobSignal::Kind& signal) = 0;
  // As Send. All members of an epoch are sent the same object, which has all of their names.
  virtual void SendEpoch(Generation generation, const std::shared_ptr<const Epoch>& epoch) {
    Send(generation, *epoch);
  }
  // Whether the member is on the coordinator's host and can share memory with servers there. The
  // value does not change once the link has been passed to Coordinator::Admit.
  virtual bool shares_memory() const { return false; }
  // Whether signals that were sent wait because the member has not read earlier ones.
  virtual bool has_unread() const { return false; }
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_
