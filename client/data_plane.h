// One worker's data plane: the links to all servers, and the groups that go
// through rounds over them.

#ifndef SYNCGRADS_CLIENT_DATA_PLANE_H_
#define SYNCGRADS_CLIENT_DATA_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/group_rounds.h"
#include "client/memory_link.h"
#include "client/server_link.h"
#include "client/timers.h"
#include "client/transport.h"
#include "common/group.h"
#include "common/ids.h"
#include "common/membership.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Thread-safe.
class DataPlane : public Outbox {
 public:
  struct Options {
    std::vector<std::string> servers;
    int connections_per_server = 1;
    DataHello hello;
    Generation generation{};
    absl::Duration lease;
    // Memory to share with servers on this host; null: none is shared. Outlives the
    // data plane.
    SharedBuffers* shared = nullptr;
    // Whether streams may move to unix sockets of servers on this host.
    bool unix_socket = true;
    // Is told how payloads go to each server, and why.
    std::function<void(const std::string&)> on_path;
    // Is told when a codec is replaced by a milder one.
    std::function<void(const std::string&)> on_codec_replaced;
    // A server refuses this worker or is out of reach. Called without locks.
    std::function<void(absl::Status)> on_lost;
  };

  // `transport` and `timers` must outlive it.
  DataPlane(Options options, Transport& transport, Timers& timers);
  // After AwaitClosed.
  ~DataPlane() override;

  void Start();
  // As ServerLink's, to each server.
  void SetConnections(int connections);
  // As SendWindow's.
  void SetSendMoment(absl::Duration moment) { window_->SetMoment(moment); }
  // The newest epoch's number, for the contributions from now on.
  void SetEpoch(uint64_t number) { epoch_.store(number); }

  // The rounds of a registered group; the same ones if they exist. They begin at
  // `first`, or where the group does.
  // InvalidArgument if the plan names a server that there is not.
  absl::StatusOr<std::shared_ptr<GroupRounds>> AddGroup(GroupPlan plan,
                                                        std::optional<Round> first = std::nullopt);

  // FailedPrecondition if a group is in the middle of a round.
  absl::Status CheckIdle() const;
  // The newest round of each group with a part contributed.
  std::vector<GroupRound> Progress() const;

  // Everything under way in every group, now and later, fails with `status`.
  void Fail(const absl::Status& status);
  // Begins to close the streams; after Fail.
  void Close();
  // After Close: returns when no buffer is in use and no event will come.
  void AwaitClosed();

  const std::vector<std::string>& servers() const { return options_.servers; }

  // Asks the servers what `rounds` waits for, each for at most `timeout`.
  // `answer` gets one sentence for each server, on any thread.
  void Explain(const GroupRounds& rounds, const std::vector<ServerIndex>& servers,
               absl::Duration timeout, std::function<void(std::string)> answer);

  // A reader of what the optimizer of `plan`'s group keeps after `round`, at each server
  // that has chunks of it. Empty if the transport cannot.
  std::vector<std::unique_ptr<OptimizerReader>> OpenOptimizer(const GroupPlan& plan, Round round,
                                                              absl::Duration timeout);

  void Send(ServerIndex server, const ChunkKey& key, uint64_t made_in,
            std::shared_ptr<const OutgoingMessage> message) override;
  void Forget(ServerIndex server, const ChunkKey& key) override;
  SharedBuffers* SharedWith(ServerIndex server) override;
  void OnCodecReplaced(const std::string& notice) override;

  absl::Time Now() const { return timers_.Now(); }

  // Waits until what is to be shared with the servers is, or will not be.
  void AwaitShared(absl::Time deadline) const;

 private:
  // Hands new regions over to the servers on this host.
  void OfferShared();
  std::vector<std::shared_ptr<GroupRounds>> Groups() const;
  absl::Status OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory);

  const Options options_;
  Transport& transport_;
  const Timers& timers_;
  std::atomic<uint64_t> epoch_{0};
  const std::shared_ptr<SendWindow> window_;
  std::vector<std::shared_ptr<ServerLink>> links_;
  // One for each server; empty if nothing is shared.
  std::vector<std::shared_ptr<MemoryLink>> memory_;

  mutable Mutex mutex_;
  std::map<GroupId, std::shared_ptr<GroupRounds>> groups_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_DATA_PLANE_H_
