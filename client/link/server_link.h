// One worker's link to one server: the streams that carry its contributions.
//
// A contribution is retried until it has been answered. If a stream breaks, the contributions that
// were sent on it and have not been answered (Unanswered) are sent again, byte for byte, on the
// next stream.
//
// Each stream has at most one message that its transport has not accepted yet; the SendWindow
// limits their total size. The number of messages that are accepted and not answered is not
// limited, because the answers depend on the progress of other workers.
//
// A stream is connecting (the hello is being written), then up, then closed. The next attempt
// follows after a backoff, until the server has been unreachable for Options::server_timeout.
// PayloadPath decides where streams connect to.

#ifndef SYNCGRADS_CLIENT_LINK_SERVER_LINK_H_
#define SYNCGRADS_CLIENT_LINK_SERVER_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/link/backoff.h"
#include "client/link/outbox.h"
#include "client/link/payload_path.h"
#include "client/link/send_window.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "client/link/unanswered.h"
#include "client/memory/memory_link.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Owned by the DataPlane, always by a shared_ptr. Thread-safe. `mutex_` may be held when the
// SendWindow, the MemoryLink or the Timers are called, so their locks come after it. It is not held
// when a callback or a stream is called.
class ServerLink : public Sender, public std::enable_shared_from_this<ServerLink> {
 public:
  struct Options {
    ServerIndex server{};
    std::string address;
    int connections = 1;
    DataHello hello;
    // Memory shared with the server. Null: none is shared.
    std::shared_ptr<MemoryLink> memory;
    // If true, streams may use a unix socket of the server.
    bool unix_socket = true;
    // Called without locks when it is known how payloads go to this server, and when that changes.
    std::function<void(const PathReport&)> on_path;
    // Shared with the links to the other servers.
    std::shared_ptr<SendWindow> window;
    // How long the server may be unreachable before the link is lost.
    absl::Duration server_timeout = absl::Seconds(30);
    // Called without locks with an answer. Returns InvalidArgument if the answer is malformed; the
    // link then cancels the stream on which it came.
    std::function<absl::Status(const UpdateFrame&, std::shared_ptr<const void> memory)> on_update;
    // Called at most once, without locks: the server refuses this worker, or has been unreachable
    // for too long.
    std::function<void(absl::Status)> on_lost;
  };

  // `transport` and `timers` must be valid until AwaitStopped has returned.
  ServerLink(Options options, Transport& transport, Timers& timers);

  const std::string& address() const { return options_.address; }

  // Opens the streams. Call it once.
  void Start();
  // Uses `connections` streams from now on, at least one. It opens more streams, or closes some;
  // the contributions of a closed stream are sent again on the others.
  void SetConnections(int connections);
  void Send(const ChunkKey& key, uint64_t made_in, std::shared_ptr<const OutgoingMessage> message);
  void Forget(const ChunkKey& key);

  // Drops all contributions and cancels the streams.
  void Stop();
  // After Stop: waits until the streams are closed.
  void AwaitStopped();

  void OnTurn() override { Pump(); }

  // The error of the newest failed attempt or stream; OK if there is no known trouble.
  absl::Status Trouble() const;

 private:
  class Stream;
  std::string Name() const;  // for messages: "server 1 at 10.0.0.7:5000"
  void Connect(size_t slot);
  // Returns what is sent to this server for a contribution: the whole message, or a reference to
  // shared memory.
  std::shared_ptr<const OutgoingMessage> FormOf(
      std::shared_ptr<const OutgoingMessage> message) const;
  // Finds the payload of an answer that lies in shared memory.
  absl::Status Resolve(UpdateFrame& update, std::shared_ptr<const void>& memory) const;
  void Pump();
  void OnWritten(Stream* stream);
  // The transport has accepted what `stream` has written.
  void Accepted(Stream* stream);
  void OnReceived(Stream* stream, ReceivedMessage message);
  void OnClosed(Stream* stream, absl::Status status);
  // Applies the answer in `update`. Returns InvalidArgument if it is malformed.
  absl::Status OnAnswer(Stream* stream, const UpdateFrame& update,
                        std::shared_ptr<const void> memory);
  // Decides what follows the end of `stream`: the delay before the next attempt, or nothing. Sets
  // `lost` if the link has lost the server.
  std::optional<absl::Duration> AfterEnd(const Stream& stream, const absl::Status& status,
                                         absl::Status& lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWelcome(const DataWelcome& welcome);
  void OnShared(const std::string& socket);
  void OnRefused(const std::string& reason);
  // Applies `event` to `path_`, and replaces the streams that are not on the path that results.
  void Change(absl::FunctionRef<void(PayloadPath&)> event);
  void Report(const std::optional<PathReport>& report) const;
  // Sends a postponed contribution again.
  void Resume(const ChunkKey& key);

  const Options options_;
  Transport& transport_;
  Timers& timers_;

  mutable Mutex mutex_;
  CondVar changed_;
  struct Slot {
    std::shared_ptr<Stream> stream;  // null between two attempts
    Backoff backoff;
  };
  // The first `wanted_` slots have the streams that are used.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_ ABSL_GUARDED_BY(mutex_);
  PayloadPath path_ ABSL_GUARDED_BY(mutex_);
  Unanswered unanswered_ ABSL_GUARDED_BY(mutex_);
  StreamNumber streams_ ABSL_GUARDED_BY(mutex_) = 0;  // the number of streams started so far
  // The time since which no stream has been up; InfiniteFuture while one is.
  absl::Time down_since_ ABSL_GUARDED_BY(mutex_);
  absl::Status trouble_ ABSL_GUARDED_BY(mutex_);
  int open_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_SERVER_LINK_H_
