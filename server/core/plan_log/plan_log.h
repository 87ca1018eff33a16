// The plan: the numbered changes that every server applies in order, and how many of them each
// server has applied.
//
// Server 0, the coordinator's own server, is one of them. A change is sent to every connected
// server. A server that reconnects is sent the changes that it has not applied. A change that
// all servers have applied is removed from the log.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_LOG_PLAN_LOG_H_
#define SYNCGRADS_SERVER_CORE_PLAN_LOG_PLAN_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "server/core/plan/group_preparation.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/store.h"

namespace syncgrads::server {

// The connection to one server. Thread-safe. The methods only queue; they never block and never
// call back, because they are called while Coordinator::mutex_ is held.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  virtual void Send(const PlanChange& change) = 0;
  virtual void Prepare(const GroupPreparation& preparation) = 0;
};

// What a server reports of itself when it connects.
struct ServerIdentity {
  ServerIndex index{};
  std::string address;
  Incarnation incarnation{};
  // The number of the newest change that it has applied, and the plan of that change.
  uint64_t applied = 0;
  uint64_t plan = 0;
};

// Not thread-safe; owned by the Coordinator and protected by Coordinator::mutex_.
class PlanLog {
 public:
  // `servers` is their number, server 0 included. `plan` identifies this plan: changes of
  // different plans are never mixed.
  PlanLog(uint32_t servers, std::string own_address, uint64_t plan = 1);

  // Restores the stored plan: its start, the changes since then, and the servers that have
  // connected. If it is called, it is the first call.
  void Restore(const PlanStart& start, const std::vector<PlanChange>& changes,
               const std::vector<ServerSeen>& servers);

  // Connects a server, for the first time or again, and sends it the changes that it has not
  // applied. Sets `state_lost` to whether the server has lost changes that it had applied; it
  // is then sent only changes that follow.
  //
  // Errors:
  //   InvalidArgument     the index is 0 or not less than the number of servers
  //   AlreadyExists       another process with this index is connected
  //   DataLoss            the server has applied changes of another plan, or more changes than
  //                       this plan has. It must discard its state and connect again
  absl::Status Attach(const ServerIdentity& server, std::shared_ptr<ServerLink> link,
                      bool& state_lost);
  // Whether the server's identity is stored as ServerSeen: it was restored, or SetStored was called
  // since the server has connected with this address and incarnation.
  bool IsStored(ServerIndex index) const { return servers_[ToNumber(index)].stored; }
  void SetStored(ServerIndex index) { servers_[ToNumber(index)].stored = true; }
  // Connects server 0, which has applied all restored changes, and sends it the changes that
  // follow. Its link never breaks.
  void AttachOwn(std::shared_ptr<ServerLink> link);
  // Disconnects a server because its link broke. Does nothing and returns false if the server
  // has another link by now.
  bool Detach(ServerIndex index, const ServerLink* link);
  // Records that the server has applied all changes up to `sequence`. Does nothing and returns
  // false if the server has another link by now.
  bool Applied(ServerIndex index, const ServerLink* link, uint64_t sequence);

  // Records the free memory in bytes that the server reports. Does nothing if the server has
  // another link by now.
  void SetAvailable(ServerIndex index, const ServerLink* link, uint64_t bytes);
  // Free memory in bytes last reported by this server; nullopt if it has not reported.
  std::optional<uint64_t> Available(ServerIndex index) const;

  // Sets the change's plan and its sequence number, the next one. Before another change is
  // numbered, this one must be stored and passed to Send, or dropped.
  void Number(PlanChange& change) const;
  // Adds a numbered change to the log and sends it to every connected server.
  void Send(const PlanChange& change);

  // Sends a request to a server; does nothing while the server is not connected.
  void Prepare(ServerIndex server, const GroupPreparation& preparation) const;
  // A new key for a preparation. It differs from all earlier keys, also from those of a
  // coordinator that was started before `now`.
  uint64_t NewPreparationKey(absl::Time now);

  // The number of the newest change that every server has applied.
  uint64_t applied_by_all() const;
  // The number of the newest change that every connected server has applied.
  uint64_t applied_by_connected() const;
  // Whether every server has applied every change.
  bool settled() const { return applied_by_all() == newest_; }
  // The plan's position: a log restored from it alone continues with the next change.
  PlanStart Start() const;
  // Whether every server has connected at least once.
  bool complete() const;
  bool IsConnected(ServerIndex index) const { return servers_[ToNumber(index)].link != nullptr; }
  // The servers that are not connected, for messages; empty if all are.
  std::string Absent() const;
  // Notes which servers apply the changes. Must be called again and again.
  void Watch(absl::Time now);
  // A message that names the servers that have applied nothing for a while although there were
  // changes, according to the newest Watch; empty if there are none.
  const std::string& behind() const { return behind_; }
  // The address of each server, by index; empty if not known.
  std::vector<std::string> addresses() const;
  // Replaces the address of server 0.
  void Advertise(std::string own_address) { servers_[0].address = std::move(own_address); }
  uint32_t size() const { return static_cast<uint32_t>(servers_.size()); }

 private:
  struct Server {
    std::string address;
    Incarnation incarnation{};  // 0 if it has never connected
    bool stored = false;        // see IsStored
    // The number of the newest change that it has applied.
    uint64_t applied = 0;
    std::optional<uint64_t> available;  // bytes
    // Since when it has applied no more than `watched`, although there are more changes.
    absl::Time behind_since = absl::InfiniteFuture();
    uint64_t watched = 0;
    // Null while it is not connected.
    std::shared_ptr<ServerLink> link;
  };

  // Removes the changes that every server has applied.
  void ForgetApplied();
  // Sends a connected server the changes that it has not applied.
  void SendMissing(const Server& server) const;

  uint64_t plan_;
  std::vector<Server> servers_;
  std::deque<PlanChange> changes_;  // not yet applied by all servers
  std::string behind_;
  // The number of the newest change.
  uint64_t newest_ = 0;
  uint64_t newest_key_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_LOG_PLAN_LOG_H_
