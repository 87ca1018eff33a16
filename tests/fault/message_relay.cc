#include "tests/fault/message_relay.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace syncgrads::fault {

FateOfMessage RandomFates(const MessageFaults& faults, uint64_t seed) {
  struct Source {
    std::mutex mutex;
    std::mt19937_64 engine;
  };
  auto source = std::make_shared<Source>();
  source->engine.seed(seed);
  return [faults, source](const std::string& method, uint64_t number) {
    double drawn;
    {
      std::lock_guard lock(source->mutex);
      drawn = std::uniform_real_distribution<double>()(source->engine);
    }
    const bool unordered = absl::EndsWith(method, "/Exchange");
    if (drawn < faults.drop) return Fate::kDropped;
    drawn -= faults.drop;
    if (number == 0) return Fate::kPassed;
    if (drawn < faults.duplicate) return unordered ? Fate::kDuplicated : Fate::kPassed;
    drawn -= faults.duplicate;
    return unordered && drawn < faults.reorder ? Fate::kHeld : Fate::kPassed;
  };
}

// One call. It has a stream to each side and, for each direction, a queue of messages to be
// written.
//
// Thread-safe: gRPC calls the reactors on its threads; mutex_ protects the state. The call keeps
// itself alive (own_server_, own_client_) until the OnDone of both streams.
class MessageRelay::Call : public std::enable_shared_from_this<Call> {
 public:
  static grpc::ServerGenericBidiReactor* Start(MessageRelay& relay, std::string method,
                                               const std::shared_ptr<grpc::Channel>& upstream) {
    auto call = std::shared_ptr<Call>(new Call(relay, std::move(method), upstream));
    call->own_client_ = call->own_server_ = call;
    call->client_.Begin();
    // server_ stays valid even if the call ends at once: gRPC calls its OnDone only after this
    // function has returned the reactor.
    return &call->server_;
  }

 private:
  // Makes the relay wait for this call.
  class Counted {
   public:
    explicit Counted(MessageRelay& relay) : relay_(relay) { relay_.CallBegins(); }
    ~Counted() { relay_.CallEnds(); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    MessageRelay& relay_;
  };

  // The messages in flight in one direction.
  struct Direction {
    std::function<void(const grpc::ByteBuffer*)> write;
    std::deque<grpc::ByteBuffer> queue;  // the first message is being written
    std::optional<grpc::ByteBuffer> held;
    uint64_t messages = 0;
    bool writing = false;
    bool ended = false;  // no more messages will come
  };

  // The side of the caller.
  class Server : public grpc::ServerGenericBidiReactor {
   public:
    explicit Server(Call& call) : call_(call) { StartRead(&message_); }
    void OnReadDone(bool ok) override {
      if (!ok) return call_.OnEnded(call_.up_);
      call_.OnMessage(call_.up_, std::move(message_));
      message_.Clear();
      StartRead(&message_);
    }
    void OnWriteDone(bool ok) override { call_.OnWritten(call_.down_, ok); }
    void OnCancel() override { call_.Break(); }
    void OnDone() override { std::shared_ptr<Call>(std::move(call_.own_server_)).reset(); }

   private:
    Call& call_;
    grpc::ByteBuffer message_;
  };

  // The side of the upstream server.
  class Client : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Client(Call& call) : call_(call) {}
    void Begin() {
      AddHold();  // needed because writes are started from the other side
      StartRead(&message_);
      StartCall();
    }
    void OnReadDone(bool ok) override {
      if (!ok) return call_.OnUpstreamEnded();
      call_.OnMessage(call_.down_, std::move(message_));
      message_.Clear();
      StartRead(&message_);
    }
    void OnWriteDone(bool ok) override { call_.OnWritten(call_.up_, ok); }
    void OnDone(const grpc::Status& status) override {
      call_.OnUpstreamDone(status);
      std::shared_ptr<Call>(std::move(call_.own_client_)).reset();
    }

   private:
    Call& call_;
    grpc::ByteBuffer message_;
  };

  Call(MessageRelay& relay, std::string method, const std::shared_ptr<grpc::Channel>& upstream)
      : counted_(relay),
        relay_(relay),
        method_(std::move(method)),
        stub_(upstream),
        server_(*this),
        client_(*this) {
    up_.write = [this](const grpc::ByteBuffer* message) { client_.StartWrite(message); };
    down_.write = [this](const grpc::ByteBuffer* message) { server_.StartWrite(message); };
    stub_.PrepareBidiStreamingCall(&context_, method_, {}, &client_);
  }

  void OnMessage(Direction& direction, grpc::ByteBuffer message) {
    std::unique_lock lock(mutex_);
    const Fate fate = relay_.fate_(method_, direction.messages++);
    if (fate == Fate::kDropped) {
      lock.unlock();
      Break();
      return;
    }
    if (fate == Fate::kHeld && !direction.held.has_value()) {
      direction.held = std::move(message);
      relay_.CallAt(absl::Now() + relay_.longest_hold_, [self = weak_from_this(), &direction] {
        const std::shared_ptr<Call> call = self.lock();
        if (call == nullptr) return;
        std::lock_guard lock(call->mutex_);
        call->ReleaseLocked(direction);
        call->WriteLocked(direction);
      });
      return;
    }
    direction.queue.push_back(message);
    if (fate == Fate::kDuplicated) direction.queue.push_back(message);
    ReleaseLocked(direction);
    WriteLocked(direction);
  }

  void ReleaseLocked(Direction& direction) {
    if (!direction.held.has_value()) return;
    direction.queue.push_back(*std::move(direction.held));
    direction.held.reset();
  }

  void WriteLocked(Direction& direction) {
    if (direction.writing || over_ || (&direction == &up_ && released_)) return;
    if (!direction.queue.empty()) {
      direction.writing = true;
      direction.write(&direction.queue.front());
    } else if (direction.ended && !direction.held.has_value() && &direction == &up_ &&
               !half_closed_) {
      half_closed_ = true;
      client_.StartWritesDone();
    } else if (direction.ended && !direction.held.has_value() && &direction == &down_) {
      FinishLocked();
    }
  }

  void OnWritten(Direction& direction, bool ok) {
    std::lock_guard lock(mutex_);
    direction.writing = false;
    direction.queue.pop_front();
    if (!ok) direction.queue.clear();
    WriteLocked(direction);
  }

  void OnEnded(Direction& direction) {
    std::lock_guard lock(mutex_);
    direction.ended = true;
    WriteLocked(direction);
  }

  // gRPC reports the final status only after the hold has been removed, so no message is written
  // from now on.
  void OnUpstreamEnded() {
    std::lock_guard lock(mutex_);
    ReleaseClientLocked();
  }

  void ReleaseClientLocked() {
    if (released_) return;
    released_ = true;
    client_.RemoveHold();
  }

  void OnUpstreamDone(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    // The call to the server may end as cancelled before Break has finished the stream.
    if (!over_ && !broken_) status_ = status;
    down_.ended = true;
    ReleaseLocked(down_);
    WriteLocked(down_);
  }

  // Breaks the stream on both sides.
  void Break() {
    {
      std::lock_guard lock(mutex_);
      broken_ = true;
      status_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the relay has broken the stream");
    }
    context_.TryCancel();
    std::lock_guard lock(mutex_);
    FinishLocked();
  }

  void FinishLocked() {
    if (over_) return;
    over_ = true;
    if (!half_closed_) context_.TryCancel();
    ReleaseClientLocked();
    server_.Finish(status_);
  }

  // The first member, so that the relay waits for the destructors of all others. A call ends on a
  // thread of gRPC, where it must not release the last reference to the channel to upstream: the
  // channel would wait for this thread.
  const Counted counted_;
  MessageRelay& relay_;
  const std::string method_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;

  std::mutex mutex_;
  Direction up_, down_;       // guarded by mutex_
  grpc::Status status_;       // guarded by mutex_
  bool half_closed_ = false;  // guarded by mutex_
  bool broken_ = false;       // Break was called; guarded by mutex_
  bool released_ = false;     // no more writes to the server; guarded by mutex_
  bool over_ = false;         // guarded by mutex_

  std::shared_ptr<Call> own_server_, own_client_;
  Server server_;
  Client client_;
};

absl::StatusOr<std::unique_ptr<MessageRelay>> MessageRelay::Start(FateOfMessage fate,
                                                                  absl::Duration longest_hold) {
  auto relay = absl::WrapUnique(new MessageRelay(std::move(fate), longest_hold));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterCallbackGenericService(relay.get());
  relay->server_ = builder.BuildAndStart();
  if (relay->server_ == nullptr) return absl::UnavailableError("a relay cannot listen");
  relay->port_ = static_cast<uint16_t>(port);
  return relay;
}

MessageRelay::MessageRelay(FateOfMessage fate, absl::Duration longest_hold)
    : fate_(std::move(fate)), longest_hold_(longest_hold), timer_thread_([this] { RunTimers(); }) {}

MessageRelay::~MessageRelay() {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  {
    std::unique_lock lock(mutex_);
    // The server waits for the callers' sides only. A message from upstream may still be on its way
    // through a call whose caller has been sent the end.
    changed_.wait(lock, [this] { return calls_ == 0; });
    stopped_ = true;
  }
  changed_.notify_all();
  timer_thread_.join();
}

void MessageRelay::SetUpstream(uint16_t port) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // The pauses between attempts to connect are short. One attempt may last long, because the
  // machine may be busy; a server that does not run refuses it at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20'000);
  // Without this, relays with the same target would share a connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::lock_guard lock(mutex_);
  upstream_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                        grpc::InsecureChannelCredentials(), arguments);
}

grpc::ServerGenericBidiReactor* MessageRelay::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  std::shared_ptr<grpc::Channel> upstream;
  {
    std::lock_guard lock(mutex_);
    upstream = upstream_;
  }
  if (upstream != nullptr) return Call::Start(*this, context->method(), upstream);
  class Refusal : public grpc::ServerGenericBidiReactor {
   public:
    Refusal() { Finish({grpc::StatusCode::UNAVAILABLE, "the relay has no server yet"}); }
    void OnDone() override { delete this; }
  };
  return new Refusal;
}

void MessageRelay::CallAt(absl::Time time, std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    timers_.emplace(time, std::move(call));
  }
  changed_.notify_all();
}

void MessageRelay::CallBegins() {
  std::lock_guard lock(mutex_);
  ++calls_;
}

void MessageRelay::CallEnds() {
  // Notifies under the lock: the destructor may continue as soon as the lock is free.
  std::lock_guard lock(mutex_);
  --calls_;
  changed_.notify_all();
}

void MessageRelay::RunTimers() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (timers_.empty()) {
      changed_.wait(lock);
    } else if (timers_.begin()->first > absl::Now()) {
      changed_.wait_until(lock, absl::ToChronoTime(timers_.begin()->first));
    } else {
      std::function<void()> call = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      lock.unlock();
      call();
      lock.lock();
    }
  }
}

}  // namespace syncgrads::fault
