// A fake transport and fake timers, which a test drives by hand on its own thread. Not thread-safe,
// except for what is marked otherwise.

#ifndef SYNCGRADS_TESTS_CLIENT_FAKE_TRANSPORT_H_
#define SYNCGRADS_TESTS_CLIENT_FAKE_TRANSPORT_H_

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/link/timers.h"
#include "client/link/transport.h"
#include "common/clock.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

class FakeTimers : public Timers {
 public:
  absl::Time Now() const override { return now_; }
  void After(absl::Duration delay, std::function<void()> call) override {
    calls_.emplace(now_ + delay, std::move(call));
  }
  void Stop() override { calls_.clear(); }
  // Moves the time forward and makes the calls that become due, each at its own time.
  void Advance(absl::Duration duration) {
    const absl::Time end = now_ + duration;
    while (!calls_.empty() && calls_.begin()->first <= end) {
      now_ = calls_.begin()->first;
      const std::function<void()> call = std::move(calls_.begin()->second);
      calls_.erase(calls_.begin());
      call();
    }
    now_ = end;
  }

 private:
  // Starts at the time of the clock on which real waits end, because their deadlines are computed
  // from Now().
  absl::Time now_ = MonotonicNow();
  std::multimap<absl::Time, std::function<void()>> calls_;
};

// Returns all bytes of a message, as on the wire.
inline std::string BytesOf(const OutgoingMessage& message) {
  std::string bytes = message.header();
  for (const absl::Span<const std::byte>& piece : message.payload()) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

inline absl::Span<const std::byte> SpanOf(const std::string& bytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

// Decodes the header of a message that was sent.
inline PushHeader HeaderOf(const OutgoingMessage& message) {
  const std::string bytes = BytesOf(message);
  const absl::Span<const std::byte> whole = SpanOf(bytes);
  return DecodePush(absl::MakeConstSpan(&whole, 1))->header;
}

class FakeDataStream : public DataStream {
 public:
  FakeDataStream(std::string address, std::shared_ptr<DataStreamEvents> events)
      : address(std::move(address)), events_(std::move(events)) {}

  void Start() override { started = true; }
  bool Write(std::shared_ptr<const OutgoingMessage> message) override {
    if (closed) return false;
    sent.push_back(BytesOf(*message));
    headers.push_back(HeaderOf(*message));
    held.push_back(std::move(message));
    return false;
  }
  void Cancel() override { cancelled = true; }

  // Completes the last write; the transport releases the message.
  void Accept() {
    held.clear();
    events_->OnWritten();
  }
  // Completes the last write, but the transport keeps a reference to the message (in `held`).
  void AcceptAndHold() { events_->OnWritten(); }
  void Receive(const std::string& bytes) {
    auto memory = std::make_shared<const std::string>(bytes);
    // The message is delivered in two pieces, to test that the receiver reads across them.
    const absl::Span<const std::byte> whole = SpanOf(*memory);
    const size_t half = whole.size() / 2;
    events_->OnReceived({{whole.first(half), whole.subspan(half)}, memory});
  }
  void Close(absl::Status status) {
    closed = true;
    const std::shared_ptr<DataStreamEvents> events = std::move(events_);
    events->OnClosed(std::move(status));
  }

  const std::string address;
  bool started = false;
  // May be set by any thread.
  std::atomic<bool> cancelled = false;
  bool closed = false;
  std::vector<std::string> sent;
  std::vector<PushHeader> headers;
  std::vector<std::shared_ptr<const OutgoingMessage>> held;

 private:
  std::shared_ptr<DataStreamEvents> events_;
};

class FakeControlStream : public ControlStream {
 public:
  explicit FakeControlStream(std::shared_ptr<ControlStreamEvents> events)
      : events_(std::move(events)) {}

  void Start() override { started = true; }
  void Write(const WorkerSignal& signal) override {
    if (!closed) sent.push_back(signal);
  }
  void Cancel() override { cancelled = true; }

  void Accept() { events_->OnWritten(); }
  template <typename Kind>
  void Receive(Kind kind, Generation generation = Generation{1}) {
    JobSignal signal;
    signal.generation = generation;
    signal.kind = std::move(kind);
    events_->OnReceived(std::move(signal));
  }
  void Close(absl::Status status) {
    closed = true;
    const std::shared_ptr<ControlStreamEvents> events = std::move(events_);
    events->OnClosed(std::move(status));
  }

  bool started = false;
  bool cancelled = false;
  bool closed = false;
  std::vector<WorkerSignal> sent;

 private:
  std::shared_ptr<ControlStreamEvents> events_;
};

class FakeTransport : public Transport {
 public:
  std::shared_ptr<DataStream> OpenData(const std::string& address,
                                       std::shared_ptr<DataStreamEvents> events) override {
    data.push_back(std::make_shared<FakeDataStream>(address, std::move(events)));
    return data.back();
  }
  std::shared_ptr<ControlStream> OpenControl(const std::string&,
                                             std::shared_ptr<ControlStreamEvents> events) override {
    control.push_back(std::make_shared<FakeControlStream>(std::move(events)));
    return control.back();
  }
  void Explain(const std::string&, const std::string&, const std::string&, GroupId, absl::Duration,
               ExplainAnswer answer) override {
    answer(explanation);
  }

  std::vector<std::shared_ptr<FakeDataStream>> data;
  std::vector<std::shared_ptr<FakeControlStream>> control;
  absl::StatusOr<std::vector<RoundWait>> explanation = std::vector<RoundWait>();
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_TESTS_CLIENT_FAKE_TRANSPORT_H_
