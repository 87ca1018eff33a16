// One worker's data plane: the links to all servers, and the groups whose rounds go over them.

#ifndef SYNCGRADS_CLIENT_SESSION_DATA_PLANE_H_
#define SYNCGRADS_CLIENT_SESSION_DATA_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/link/server_link.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "client/memory/memory_link.h"
#include "client/rounds/group_rounds.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals/membership.h"

namespace syncgrads::client {

// Owned by Session, which creates it when the worker is welcomed. It is the Outbox of its groups.
// Groups, links and callbacks are called without `mutex_`. Thread-safe.
class DataPlane : public Outbox {
 public:
  struct Options {
    std::vector<std::string> servers;
    int connections_per_server = 1;
    DataHello hello;
    Generation generation{};
    // How long a server may be unreachable before the membership is lost.
    absl::Duration server_timeout;
    // Memory to share with servers on this host; it must outlive the data plane. Null: none is
    // shared.
    SharedBuffers* shared = nullptr;
    // If true, streams may use the unix sockets of servers on this host.
    bool unix_socket = true;
    // Returns the number of members of an epoch; nullopt if this worker does not know it. Called
    // without locks. Null: no epoch is known.
    std::function<std::optional<size_t>(uint64_t epoch)> world_size_of;
    // Called with a line of text that says how payloads go to a server, and why.
    std::function<void(const std::string&)> on_path;
    // Called with a line of text that says how payloads go to all servers (PathSummary).
    std::function<void(const std::string&)> on_paths;
    // Called with a line of text when a milder codec replaces a codec.
    std::function<void(const std::string&)> on_codec_replaced;
    // Called without locks when a server refuses this worker or has been unreachable for too long;
    // at most once for each server.
    std::function<void(absl::Status)> on_lost;
  };

  // `transport` and `timers` must outlive this object.
  DataPlane(Options options, Transport& transport, Timers& timers);
  // AwaitClosed must have returned.
  ~DataPlane() override;

  void Start();
  // Changes the number of streams to each server (ServerLink::SetConnections).
  void SetConnections(int connections);
  // Changes how much may be sent at once, as a duration (SendWindow::SetMoment).
  void SetSendMoment(absl::Duration moment) { window_->SetMoment(moment); }
  // Sets the number of the newest epoch. Later contributions carry it.
  void SetEpoch(uint64_t number) { epoch_.store(number); }

  // Returns the rounds of a registered group: the existing ones if the group was added before, else
  // new ones, which begin at `first` or, without it, at the group's first round. InvalidArgument if
  // the plan names a server that the job does not have.
  absl::StatusOr<std::shared_ptr<GroupRounds>> AddGroup(std::shared_ptr<const GroupPlan> plan,
                                                        std::optional<Round> first = std::nullopt);

  // FailedPrecondition if a group is in the middle of a round.
  absl::Status CheckIdle() const;
  // The newest round of each group that this worker has contributed a part of.
  std::vector<GroupRound> Progress() const;

  // Fails everything in progress in every group, and every later call, with `status`.
  void Fail(const absl::Status& status);
  // Starts to close the streams. Call it after Fail.
  void Close();
  // After Close: waits until no buffer is in use and no event will come. Has no deadline.
  void AwaitClosed();

  const std::vector<std::string>& servers() const { return options_.servers; }

  // Asks the servers which members `rounds` waits for, each for at most `timeout`. `answer` is
  // called with one sentence for each server, on any thread, possibly before this call returns.
  void Explain(const GroupRounds& rounds, const std::vector<ServerIndex>& servers,
               absl::Duration timeout, std::function<void(std::string)> answer);

  // Opens one reader for each server that has chunks of the group: it reads the optimizer's state
  // after `round`. Returns an empty vector if the transport does not support it.
  std::vector<std::unique_ptr<OptimizerReader>> OpenOptimizer(const GroupPlan& plan, Round round,
                                                              absl::Duration timeout);

  void Send(ServerIndex server, const ChunkKey& key, uint64_t made_in,
            std::shared_ptr<const OutgoingMessage> message) override;
  void Forget(ServerIndex server, const ChunkKey& key) override;
  SharedBuffers* SharedWith(ServerIndex server) override;
  void OnCodecReplaced(const std::string& notice) override;

  absl::Time Now() const { return timers_.Now(); }
  // See Transport::Poll.
  void Poll(absl::FunctionRef<bool()> is_done) { transport_.Poll(is_done); }

  // Waits until all regions are shared with the servers and their results are mapped, or it is
  // known that they will not be.
  void AwaitShared(absl::Time deadline) const;

 private:
  // Offers new regions to the servers on this host.
  void OfferShared();
  std::vector<std::shared_ptr<GroupRounds>> Groups() const;
  // InvalidArgument if `answer` lists a rank that its epoch does not have, as far as it is known.
  absl::Status CheckRanks(const GroupPlan& plan, const UpdateHeader& answer) const;
  absl::Status OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory);

  const Options options_;
  Transport& transport_;
  const Timers& timers_;
  std::atomic<uint64_t> epoch_{0};
  const std::shared_ptr<SendWindow> window_;
  std::vector<std::shared_ptr<ServerLink>> links_;
  // One for each server; empty if no memory is shared.
  std::vector<std::shared_ptr<MemoryLink>> memory_;

  mutable Mutex mutex_;
  std::map<GroupId, std::shared_ptr<GroupRounds>> groups_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_DATA_PLANE_H_
