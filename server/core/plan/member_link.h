// The coordinator's connection to one member: its Join stream.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_
#define SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_

#include "common/ids.h"
#include "common/signals/signals.h"

namespace syncgrads::server {

// Thread-safe. Send only queues; it never blocks and never calls back, because it is called while
// Coordinator::mutex_ is held.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void Send(Generation generation, const JobSignal::Kind& signal) = 0;
  // Whether the member is on the coordinator's host and can share memory with servers there. The
  // value does not change once the link has been passed to Coordinator::Admit.
  virtual bool shares_memory() const { return false; }
  // Whether signals that were sent wait because the member has not read earlier ones.
  virtual bool has_unread() const { return false; }
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_MEMBER_LINK_H_
