// One worker's way to one server: its queue of contributions, and the streams
// that carry them.
//
// A contribution is sent until it has been answered: when a stream breaks, what
// went out on it and has not been answered is sent again, the same bytes, on the
// next. At most one message is in the hands of each stream's transport and not
// yet accepted; how many have been accepted and not answered is not bounded,
// because the answers come from other workers' progress. Front chunks go first.
//
// A stream's life: connecting (the hello is being written) → up → closed; the
// next attempt follows after a backoff, until the server has been out of reach
// for longer than a lease. Where they go to is PayloadPath's to say.

#ifndef SYNCGRADS_CLIENT_SERVER_LINK_H_
#define SYNCGRADS_CLIENT_SERVER_LINK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/backoff.h"
#include "client/group_rounds.h"
#include "client/memory_link.h"
#include "client/payload_path.h"
#include "client/send_window.h"
#include "client/timers.h"
#include "client/transport.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Always in a shared_ptr. Thread-safe.
class ServerLink : public Sender, public std::enable_shared_from_this<ServerLink> {
 public:
  struct Options {
    ServerIndex server{};
    std::string address;
    int connections = 1;
    DataHello hello;
    // Memory shared with the server; null: never.
    std::shared_ptr<MemoryLink> memory;
    // Whether streams may move to a unix socket of the server's.
    bool unix_socket = true;
    // Is told how payloads go, and why. Not called with a lock held.
    std::function<void(const std::string&)> on_path;
    // Shared with the links to the other servers.
    std::shared_ptr<SendWindow> window;
    // How long the server may be out of reach.
    absl::Duration lease = absl::Seconds(30);
    // Takes an answer. InvalidArgument: it is malformed, and is an error of the
    // stream it came by. Not called with a lock held.
    std::function<absl::Status(const UpdateFrame&, std::shared_ptr<const void> memory)> on_update;
    // The server refuses this worker, or is out of reach. Called once at most.
    std::function<void(absl::Status)> on_lost;
  };

  // `transport` and `timers` must outlive AwaitStopped.
  ServerLink(Options options, Transport& transport, Timers& timers);

  const std::string& address() const { return options_.address; }

  // Connects.
  void Start();
  // Uses so many streams from now on, at least one: opens more, or closes the others,
  // whose contributions go out again on those that stay.
  void SetConnections(int connections);
  void Send(const ChunkKey& key, uint64_t made_in, std::shared_ptr<const OutgoingMessage> message);
  void Forget(const ChunkKey& key);

  // Lets go of everything and closes the streams.
  void Stop();
  // After Stop: waits until the streams are closed.
  void AwaitStopped();

  void OnTurn() override { Pump(); }

  // What keeps the server out of reach; OK if nothing is known to.
  absl::Status Trouble() const;

 private:
  class Stream;
  struct Entry {
    std::shared_ptr<const OutgoingMessage> message;
    uint64_t made_in = 0;  // the epoch
    uint64_t sequence = 0;
    const Stream* stream = nullptr;  // that it went out on; null: in the queue
  };
  // The order on the wire: front chunks first, then as they came.
  using Place = std::pair<uint32_t, uint64_t>;

  void Connect(size_t slot);
  // The form in which a contribution goes to this server: whole, or by reference.
  std::shared_ptr<const OutgoingMessage> FormOf(
      std::shared_ptr<const OutgoingMessage> message) const;
  // Finds the payload of an answer that is in shared memory.
  absl::Status Resolve(UpdateFrame& update, std::shared_ptr<const void>& memory) const;
  void Pump();
  void OnWritten(Stream* stream);
  void OnReceived(Stream* stream, ReceivedMessage message);
  void OnClosed(Stream* stream, absl::Status status);
  void OnWelcome(const DataWelcome& welcome);
  void OnShared(const std::string& socket);
  void OnRefused(const std::string& reason);
  // Tells path_ of an event. Streams that go another way than they would now are replaced.
  void Change(absl::FunctionRef<void()> event);
  void Say(const std::optional<std::string>& line) const;
  void Enqueue(const ChunkKey& key);
  void EnqueueLocked(const ChunkKey& key, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Transport& transport_;
  Timers& timers_;

  mutable Mutex mutex_;
  CondVar changed_;
  struct Slot {
    std::shared_ptr<Stream> stream;  // null while waiting for the next attempt
    Backoff backoff;
  };
  // Streams that are wanted are in the first of them.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_ ABSL_GUARDED_BY(mutex_);
  PayloadPath path_ ABSL_GUARDED_BY(mutex_);
  std::map<ChunkKey, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::map<Place, ChunkKey> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  // Since when no stream has been up.
  absl::Time down_since_ ABSL_GUARDED_BY(mutex_);
  absl::Status trouble_ ABSL_GUARDED_BY(mutex_);
  int open_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SERVER_LINK_H_
