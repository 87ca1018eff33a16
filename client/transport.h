// What the client's state machines need of a network, so that a simulation can
// stand in for gRPC.
//
// Streams report through an events object. Events of one stream come one at a
// time for each kind, from any thread, none before Start, none from within a call
// of the stream, and OnClosed is the last. An event may call the stream.

#ifndef SYNCGRADS_CLIENT_TRANSPORT_H_
#define SYNCGRADS_CLIENT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/signals.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// A message to be sent: a header, and behind it a payload that lies in somebody
// else's memory. Whoever may still read that memory holds the message; when the
// last holder lets go, `released` is called, once, on that holder's thread. It
// must not call the transport. Immutable.
class OutgoingMessage {
 public:
  // What to send instead to a server that has mapped where the payload lies.
  struct ByReference {
    std::string header;
    // The regions that the payload lies in.
    std::vector<uint32_t> regions;
  };

  // `small` is memory of the message's own that `payload` may point into.
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

// A message as it was received; its bytes live as long as `memory`.
struct ReceivedMessage {
  Pieces bytes;
  std::shared_ptr<const void> memory;
};

class DataStreamEvents {
 public:
  virtual ~DataStreamEvents() = default;
  // The transport has accepted the message given to Write.
  virtual void OnWritten() = 0;
  virtual void OnReceived(ReceivedMessage message) = 0;
  // Unavailable if the server cannot be reached or the stream broke.
  virtual void OnClosed(absl::Status status) = 0;
};

// One Exchange. Thread-safe.
class DataStream {
 public:
  virtual ~DataStream() = default;
  virtual void Start() = 0;
  // One at a time: the next after OnWritten. Ignored when the stream has ended.
  virtual void Write(std::shared_ptr<const OutgoingMessage> message) = 0;
  // OnClosed follows if it has not been called. Once that has happened and nobody
  // refers to the stream, its messages are released before long.
  virtual void Cancel() = 0;
};

class ControlStreamEvents {
 public:
  virtual ~ControlStreamEvents() = default;
  virtual void OnWritten() = 0;
  virtual void OnReceived(JobSignal signal) = 0;
  virtual void OnClosed(absl::Status status) = 0;
};

// One Join. Thread-safe; calls as in DataStream.
class ControlStream {
 public:
  virtual ~ControlStream() = default;
  virtual void Start() = 0;
  virtual void Write(const WorkerSignal& signal) = 0;
  virtual void Cancel() = 0;
};

// Which round of which group an optimizer's state is wanted of.
struct OptimizerRequest {
  std::string job;
  std::string token;
  Generation generation{};
  GroupId group{};
  Round round{};
};
// Of one chunk, as Admin.ReadOptimizer sends it.
struct OptimizerChunk {
  ChunkId chunk{};
  std::vector<uint64_t> updates;
  std::vector<std::string> slots;
};

// One ReadOptimizer. Its calls wait; destroying it ends the stream. Thread-compatible.
class OptimizerReader {
 public:
  virtual ~OptimizerReader() = default;
  // Waits until the server holds the round; returns how many chunks follow.
  virtual absl::StatusOr<uint32_t> AwaitHeld() = 0;
  // The next of them. OutOfRange: there are no more.
  virtual absl::StatusOr<OptimizerChunk> Next() = 0;
};

// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // No two streams of a transport share a connection.
  virtual std::shared_ptr<DataStream> OpenData(const std::string& address,
                                               std::shared_ptr<DataStreamEvents> events) = 0;
  virtual std::shared_ptr<ControlStream> OpenControl(
      const std::string& address, std::shared_ptr<ControlStreamEvents> events) = 0;

  // Asks a server what the rounds of a group wait for. `answer` is called once,
  // at the latest after `timeout` and on any thread.
  using ExplainAnswer = std::function<void(absl::StatusOr<std::vector<RoundWait>>)>;
  virtual void Explain(const std::string& address, const std::string& job, const std::string& token,
                       GroupId group, absl::Duration timeout, ExplainAnswer answer) = 0;

  // How many bytes a second go to a server, as far as a few messages show; returns after
  // `timeout` at the latest. Nothing if the transport cannot say.
  virtual std::optional<double> MeasureLink(const std::string& /*address*/,
                                            absl::Duration /*timeout*/) {
    return std::nullopt;
  }

  // All of the stream has to be over after `timeout`. Null if the transport cannot.
  virtual std::unique_ptr<OptimizerReader> OpenOptimizer(const std::string& /*address*/,
                                                         const OptimizerRequest& /*request*/,
                                                         absl::Duration /*timeout*/) {
    return nullptr;
  }
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TRANSPORT_H_
