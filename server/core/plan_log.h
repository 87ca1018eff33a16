// The changes that every server must follow, in order, and how far each has come.
//
// The coordinator's own server is server 0; it applies a change when it appends
// it. The others get it over their link, and again from where they were if the
// link breaks. A change that all have applied is forgotten.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_LOG_H_
#define SYNCGRADS_SERVER_CORE_PLAN_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "server/core/plan_change.h"
#include "server/core/store.h"

namespace syncgrads::server {

// Where changes for one server go. Send only queues; it never blocks or calls
// back.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  virtual void Send(const PlanChange& change) = 0;
};

struct ServerIdentity {
  ServerIndex index{};
  std::string address;
  Incarnation incarnation{};
  // The newest change it has applied, and of which plan.
  uint64_t applied = 0;
  uint64_t plan = 0;
};

// Not thread-safe; the Coordinator that owns it holds the lock.
class PlanLog {
 public:
  // `plan` tells its changes from those of any other.
  PlanLog(uint32_t servers, std::string own_address, uint64_t plan = 1);

  // Takes back what was stored: where the plan stood, the changes since then, and
  // the servers that were seen. To be called first.
  void Restore(const PlanStart& start, const std::vector<PlanChange>& changes,
               const std::vector<ServerSeen>& servers);

  // A server has connected, for the first time or again; sends it what it lacks.
  // Sets `state_lost` if it has forgotten what it had applied: it is then sent only
  // what is new from now on.
  //
  // Errors:
  //   InvalidArgument     there is no such server
  //   AlreadyExists       another process, connected, has this index
  //   DataLoss            it has applied changes of another plan, or more of this
  //                       one than there are: it must forget them
  absl::Status Attach(const ServerIdentity& server, std::shared_ptr<ServerLink> link,
                      bool& state_lost);
  // The link broke. False, and of no effect, if the server has another by now.
  bool Detach(ServerIndex index, const ServerLink* link);
  // False if the link is not the server's present one.
  bool Applied(ServerIndex index, const ServerLink* link, uint64_t sequence);

  // What a server that is connected has said it could still take; of no effect if the
  // link is not its present one.
  void SetAvailable(ServerIndex index, const ServerLink* link, uint64_t bytes);
  // That; nothing if it has not said.
  std::optional<uint64_t> Available(ServerIndex index) const;

  // Gives the change the next number. It is stored, then Sent, before another one
  // is numbered.
  void Number(PlanChange& change) const;
  // Sends it to all others; this server has applied it.
  void Send(const PlanChange& change);

  uint64_t applied_by_all() const;
  // The same of those that are connected now.
  uint64_t applied_by_connected() const;
  // All of its changes have been applied everywhere.
  bool settled() const { return applied_by_all() == newest_; }
  // Where it stands.
  PlanStart Start() const;
  // All servers have connected at least once.
  bool complete() const;
  // The servers that are not connected, in words; empty if all are.
  std::string Absent() const;
  std::vector<std::string> addresses() const;
  uint32_t size() const { return static_cast<uint32_t>(servers_.size()); }

 private:
  struct Server {
    std::string address;
    Incarnation incarnation{};  // 0: has never connected
    uint64_t applied = 0;
    std::optional<uint64_t> available;  // bytes
    std::shared_ptr<ServerLink> link;
  };

  void ForgetApplied();

  uint64_t plan_;
  std::vector<Server> servers_;
  std::deque<PlanChange> changes_;  // not yet applied by all
  uint64_t newest_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_LOG_H_
