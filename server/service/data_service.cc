#include "server/service/data_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol.h"
#include "server/service/duplex_stream.h"
#include "server/service/status.h"
#include "third_party/grpc/pollers.h"

namespace syncgrads::server {
namespace {

// A payload that is worth another polling thread.
constexpr size_t kManyBytes = 64 << 10;

// The transport's view of a result's payload, which stays where it was made until
// the transport has let go of it.
grpc::Slice PayloadSlice(std::shared_ptr<const RoundResult> result) {
  const absl::Span<const std::byte> payload = result->payload;
  auto* holder = new std::shared_ptr<const RoundResult>(std::move(result));
  return grpc::Slice(
      const_cast<std::byte*>(payload.data()), payload.size(),
      [](void* held) { delete static_cast<std::shared_ptr<const RoundResult>*>(held); }, holder);
}

// One member's Exchange stream.
class ExchangeStream : public DuplexStream<grpc::ByteBuffer, grpc::ByteBuffer>, public AnswerSink {
 public:
  ExchangeStream(const DataService& service, const Jobs& jobs, const MemoryExchange* exchange,
                 const Clock& clock)
      : service_(service), jobs_(jobs), exchange_(exchange), clock_(clock) {}

  // The front layers' go first: the next forward pass begins with them.
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    const uint32_t place = ToNumber(result->chunk);
    if (with_payload && !result->shared_header.empty()) {
      const std::shared_ptr<MemberMemory> memory = Memory();
      if (memory != nullptr && memory->IsMapped(result->group) && memory->Lend(result)) {
        grpc::Slice header(result->shared_header);
        return Enqueue(grpc::ByteBuffer(&header, 1), place);
      }
    }
    if (with_payload && !result->payload.empty()) {
      const std::string& header = result->header;
      grpc::Slice slices[2] = {grpc::Slice(header), PayloadSlice(std::move(result))};
      Enqueue(grpc::ByteBuffer(slices, 2), place);
    } else {
      grpc::Slice header(result->bare_header);
      Enqueue(grpc::ByteBuffer(&header, 1), place);
    }
  }

 private:
  void OnMessage(grpc::ByteBuffer& message) override {
    auto slices = std::make_shared<std::vector<grpc::Slice>>();
    if (!message.Dump(slices.get()).ok()) {
      return FinishAfterSending({grpc::StatusCode::INVALID_ARGUMENT, "a message is unreadable"});
    }
    message.Clear();
    Pieces pieces;
    for (const grpc::Slice& slice : *slices) {
      pieces.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
    }
    absl::StatusOr<PushFrame> push = DecodePush(pieces);
    if (!push.ok()) return FinishAfterSending(ToGrpc(push.status()));
    if (push->header.hello.has_value()) return OnHello(*push->header.hello);
    if (job_ == nullptr) {
      return FinishAfterSending({grpc::StatusCode::FAILED_PRECONDITION,
                                 "the first message of an Exchange stream must be a hello"});
    }
    if (push->header.member != hello_.member || push->header.incarnation != hello_.incarnation) {
      return FinishAfterSending(
          {grpc::StatusCode::INVALID_ARGUMENT,
           absl::StrCat("a push of member ", ToNumber(push->header.member), ", incarnation ",
                        ToNumber(push->header.incarnation), ", on the stream of member ",
                        ToNumber(hello_.member), ", incarnation ", ToNumber(hello_.incarnation))});
    }
    presence_->Heard(clock_.Now());
    Payload payload{std::move(push->payload), std::move(slices)};
    if (TotalBytes(payload.pieces) >= kManyBytes) UnparkPollers();
    if (const std::shared_ptr<MemberMemory> memory = Memory(); memory != nullptr) {
      memory->TakeBack(push->header.group, push->header.chunk, push->header.round);
    }
    if (!push->header.shared.empty()) {
      absl::StatusOr<Payload> shared = FindShared(push->header, payload);
      if (!shared.ok()) return Refuse(push->header, shared.status());
      payload = *std::move(shared);
    }
    job_->Push(push->header, std::move(payload),
               std::static_pointer_cast<ExchangeStream>(shared_from_this()));
  }

  absl::StatusOr<Payload> FindShared(const PushHeader& header, const Payload& payload) {
    if (!payload.pieces.empty()) {
      return absl::InvalidArgumentError("a push has a payload, and shared pieces as well");
    }
    const std::shared_ptr<MemberMemory> memory = Memory();
    // Of a server that has started again, too: the memory is on its way.
    if (memory == nullptr) return absl::UnavailableError("no memory is shared with this server");
    return memory->Find(header.shared);
  }

  // What the member has shared by now; null if nothing.
  std::shared_ptr<MemberMemory> Memory() {
    if (exchange_ == nullptr) return nullptr;
    MutexLock lock(memory_mutex_);
    if (job_ == nullptr || hello_.host_id.empty()) return nullptr;
    if (memory_ == nullptr || memory_->closed()) memory_ = exchange_->MemoryOf(*job_, hello_);
    return memory_;
  }

  void Refuse(const PushHeader& push, const absl::Status& error) {
    UpdateHeader refusal;
    refusal.generation = push.generation;
    refusal.group = push.group;
    refusal.chunk = push.chunk;
    refusal.round = push.round;
    refusal.error = error;
    grpc::Slice header(EncodeHeader(refusal, 0));
    Enqueue(grpc::ByteBuffer(&header, 1), ToNumber(push.chunk));
  }

  void OnHello(const DataHello& hello) {
    if (job_ != nullptr) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION, "a second hello on one Exchange stream"});
    }
    if (hello.protocol_version != kProtocolVersion) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION,
           absl::StrCat("the worker speaks protocol version ", hello.protocol_version,
                        ", this server speaks ", kProtocolVersion)});
    }
    std::shared_ptr<Job> job = jobs_.Find(hello.job);
    if (job == nullptr) {
      return FinishAfterSending(
          {grpc::StatusCode::UNAVAILABLE, absl::StrCat("no job \"", hello.job, "\" is open here")});
    }
    absl::StatusOr<std::shared_ptr<Presence>> presence = job->Admit(hello);
    if (!presence.ok()) return FinishAfterSending(ToGrpc(presence.status()));
    presence_ = *std::move(presence);
    {
      MutexLock lock(memory_mutex_);
      hello_ = hello;
      job_ = std::move(job);
    }
    if (!hello.host_id.empty()) Welcome(hello.host_id);
  }

  void Welcome(const std::string& host_id) {
    UpdateHeader header;
    header.generation = job_->generation();
    header.welcome = service_.WelcomeFor(host_id);
    grpc::Slice slice(EncodeHeader(header, 0));
    Enqueue(grpc::ByteBuffer(&slice, 1));
  }

  void OnOver() override {
    // An open round of the job may hold this stream.
    MutexLock lock(memory_mutex_);
    job_ = nullptr;
    memory_ = nullptr;
  }

  const DataService& service_;
  const Jobs& jobs_;
  const MemoryExchange* const exchange_;
  const Clock& clock_;
  DataHello hello_;
  std::shared_ptr<Job> job_;
  std::shared_ptr<Presence> presence_;
  // Guards what Send reads while messages come in: `job_`, `hello_` and `memory_`
  // are only written by the thread that messages come on.
  Mutex memory_mutex_;
  std::shared_ptr<MemberMemory> memory_ ABSL_GUARDED_BY(memory_mutex_);
};

}  // namespace

DataWelcome DataService::WelcomeFor(const std::string& host_id) const {
  if (host_id_.empty() || host_id != host_id_) return {"", "the server is on another host", ""};
  if (exchange_ == nullptr) return {"", "the server shares no memory", unix_socket_};
  return {exchange_->address(), "", unix_socket_};
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DataService::Exchange(
    grpc::CallbackServerContext*) {
  auto stream = std::make_shared<ExchangeStream>(*this, jobs_, exchange_, clock_);
  stream->Start();
  return stream.get();
}

}  // namespace syncgrads::server
