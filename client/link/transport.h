// The network, as the client's state machines use it. The gRPC implementation is in
// grpc_transport.h; a simulation can replace it.
//
// Streams report events to an events object. Events of one kind come one at a time, from any
// thread. No event comes before Start or from within a call to the stream. OnClosed is the last
// event. An event handler may call the stream.

#ifndef SYNCGRADS_CLIENT_LINK_TRANSPORT_H_
#define SYNCGRADS_CLIENT_LINK_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/signals/round_wait.h"
#include "common/signals/signals.h"
#include "common/trace/trace_event.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// A message to be sent: a header, followed by a payload that lies in memory of another owner.
//
// Everybody that may still read that memory holds a reference to the message. When the last
// reference is dropped, `released` is called once, on the thread that dropped it. `released` must
// not call the transport. Immutable.
class OutgoingMessage {
 public:
  // Sent instead of the message to a server that has mapped the memory of the payload.
  struct ByReference {
    std::string header;
    // The shared regions that the payload lies in.
    std::vector<uint32_t> regions;
  };

  // `payload` may point into `small`, which the message owns.
  OutgoingMessage(std::string header, Pieces payload, std::unique_ptr<std::byte[]> small,
                  std::function<void()> released,
                  std::optional<ByReference> by_reference = std::nullopt)
      : header_(std::move(header)),
        payload_(std::move(payload)),
        small_(std::move(small)),
        released_(std::move(released)),
        by_reference_(std::move(by_reference)) {}
  ~OutgoingMessage() {
    if (released_) released_();
  }
  OutgoingMessage(const OutgoingMessage&) = delete;
  OutgoingMessage& operator=(const OutgoingMessage&) = delete;

  const std::string& header() const { return header_; }
  const Pieces& payload() const { return payload_; }
  const std::optional<ByReference>& by_reference() const { return by_reference_; }

 private:
  const std::string header_;
  const Pieces payload_;
  const std::unique_ptr<std::byte[]> small_;
  const std::function<void()> released_;
  const std::optional<ByReference> by_reference_;
};

// A received message. Its bytes stay valid as long as `memory`.
struct ReceivedMessage {
  Pieces bytes;
  std::shared_ptr<const void> memory;
};

class DataStreamEvents {
 public:
  virtual ~DataStreamEvents() = default;
  // The transport has accepted the message for which Write returned false.
  virtual void OnWritten() = 0;
  virtual void OnReceived(ReceivedMessage message) = 0;
  // `status` is Unavailable if the server cannot be reached or the stream broke.
  virtual void OnClosed(absl::Status status) = 0;
};

// One Exchange stream, or a local stream in its place. Thread-safe.
class DataStream {
 public:
  virtual ~DataStream() = default;
  virtual void Start() = 0;
  // Sends `message`. Returns true if the transport has accepted it. Otherwise OnWritten follows,
  // and the next call must wait for it. Ignored if the stream has ended.
  virtual bool Write(std::shared_ptr<const OutgoingMessage> message) = 0;
  // Ends the stream. OnClosed follows, unless it has been called. After OnClosed, when nobody
  // refers to the stream any more, its messages are released soon.
  virtual void Cancel() = 0;
};

class ControlStreamEvents {
 public:
  virtual ~ControlStreamEvents() = default;
  virtual void OnWritten() = 0;
  virtual void OnReceived(JobSignal signal) = 0;
  virtual void OnClosed(absl::Status status) = 0;
};

// One Join stream. As with DataStream, a call of Write must wait for OnWritten of the call before
// it, and OnClosed follows Cancel. Thread-safe.
class ControlStream {
 public:
  virtual ~ControlStream() = default;
  virtual void Start() = 0;
  virtual void Write(const WorkerSignal& signal) = 0;
  virtual void Cancel() = 0;
};

// Names the round of a group after which the optimizer's state is requested.
struct OptimizerRequest {
  std::string job;
  std::string token;
  Generation generation{};
  GroupId group{};
  Round round{};
};
// The optimizer's state of one chunk, as sent by Admin.ReadOptimizer.
struct OptimizerChunk {
  ChunkId chunk{};
  std::vector<uint64_t> updates;
  std::vector<std::string> slots;
};

// One ReadOptimizer stream. Its methods block. Destroying it ends the stream. Thread-compatible.
class OptimizerReader {
 public:
  virtual ~OptimizerReader() = default;
  // Waits until the server holds the round's state. Returns how many chunks follow.
  virtual absl::StatusOr<uint32_t> AwaitHeld() = 0;
  // Returns the next chunk. OutOfRange if there are no more.
  virtual absl::StatusOr<OptimizerChunk> Next() = 0;
};

// What a worker has recorded after a TraceRequested.
struct TraceReport {
  uint64_t trace = 0;
  MemberId member{};
  TraceRecords records;
};

// Opens streams to servers. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Two open streams of one transport never share a connection. `address` is HOST:PORT, unix:PATH
  // or unix-abstract:NAME, or, for a local stream, local:NAME with the name of an abstract socket.
  // Nothing is sent to an abstract socket of another user: the stream closes with PermissionDenied.
  virtual std::shared_ptr<DataStream> OpenData(const std::string& address,
                                               std::shared_ptr<DataStreamEvents> events) = 0;
  virtual std::shared_ptr<ControlStream> OpenControl(
      const std::string& address, std::shared_ptr<ControlStreamEvents> events) = 0;

  // Waits a moment, at most until `is_done` returns true, and handles what servers on this host
  // answer meanwhile: OnWritten, and OnReceived after the first message, then come on this thread.
  // For a thread that holds no lock and waits for an answer. Returns at once if there are no local
  // streams.
  virtual void Poll(absl::FunctionRef<bool()> /*is_done*/) {}

  // Asks a server which members the rounds of a group wait for. `answer` is called once, on any
  // thread, after `timeout` at the latest.
  using ExplainAnswer = std::function<void(absl::StatusOr<std::vector<RoundWait>>)>;
  virtual void Explain(const std::string& address, const std::string& job, const std::string& token,
                       GroupId group, absl::Duration timeout, ExplainAnswer answer) = 0;

  // Estimates the throughput to a server, in bytes per second, from a few messages. Blocks for
  // `timeout` at most. Returns nullopt if the transport cannot measure it.
  virtual std::optional<double> MeasureLink(const std::string& /*address*/,
                                            absl::Duration /*timeout*/) {
    return std::nullopt;
  }

  // Reports a recording to the coordinator, together with the difference of the clocks. Blocks
  // until the coordinator has all of it, `timeout` has passed, or `stop` is true.
  virtual absl::Status ReportTrace(const std::string& /*address*/, const TraceReport& /*report*/,
                                   absl::Duration /*timeout*/, const std::atomic<bool>& /*stop*/) {
    return absl::UnimplementedError("this transport reports no traces");
  }

  // Opens a stream that must be over when `timeout` has passed. Returns null if the transport does
  // not support it.
  virtual std::unique_ptr<OptimizerReader> OpenOptimizer(const std::string& /*address*/,
                                                         const OptimizerRequest& /*request*/,
                                                         absl::Duration /*timeout*/) {
    return nullptr;
  }
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_TRANSPORT_H_
