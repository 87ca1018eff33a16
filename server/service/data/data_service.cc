#include "server/service/data/data_service.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/group/layout.h"
#include "common/net/address.h"
#include "common/rpc/peer_address.h"
#include "common/rpc/status.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/access/caller.h"
#include "server/core/jobs/presence.h"
#include "server/service/calls/duplex_stream.h"
#include "server/service/calls/grpc_stream_call.h"
#include "server/service/calls/local_stream_call.h"
#include "third_party/grpc/pollers.h"

namespace syncgrads::server {
namespace {

// A payload of at least this size is worth further polling threads.
constexpr size_t kManyBytes = 64 << 10;

// The results that may wait for a member to read, in rounds of all groups of its job. Two rounds
// may wait on one connection. While a broken connection has not been detected, the results of its
// replacement wait as well.
constexpr size_t kMaxUnreadRounds = 4;

// Returns a slice of the result's payload, without copying it. The slice references the result
// until the transport has released the slice.
grpc::Slice PayloadSlice(std::shared_ptr<const RoundResult> result) {
  const absl::Span<const std::byte> payload = result->payload;
  auto* holder = new std::shared_ptr<const RoundResult>(std::move(result));
  return grpc::Slice(
      const_cast<std::byte*>(payload.data()), payload.size(),
      [](void* held) { delete static_cast<std::shared_ptr<const RoundResult>*>(held); }, holder);
}

// One member's Exchange stream. Owned as DuplexStream describes. Lock order: `memory_mutex_`, then
// that of the MemoryExchange; DuplexStream's mutex is never held together with them.
class ExchangeStream : public DuplexStream, public AnswerSink, public MemberStream {
 public:
  // `peer` is gRPC's text for the other end.
  ExchangeStream(std::unique_ptr<StreamCall> call, Caller caller, std::string peer,
                 StreamDeadlines& deadlines, const DataService& service, const Jobs& jobs,
                 const MemoryExchange* exchange, Access& access, const Clock& clock,
                 Traffic& traffic)
      : DuplexStream(std::move(call), deadlines,
                     std::make_shared<UnreadBytes>(Presence::kLeastUnreadLimit)),
        service_(service),
        jobs_(jobs),
        exchange_(exchange),
        access_(access),
        caller_(std::move(caller)),
        clock_(clock),
        traffic_(traffic),
        peer_(std::move(peer)),
        path_(absl::StartsWith(peer_, "unix") ? PayloadPath::kUnix : PayloadPath::kTcp) {
    access_.StreamBegan(caller_);
  }

  void Cut(const absl::Status& reason) override {
    CutWith(ToGrpc(reason));
    // The member's loans in shared memory are released too, without waiting for the member.
    std::shared_ptr<MemberMemory> memory;
    {
      MutexLock lock(memory_mutex_);
      memory = memory_;
    }
    if (memory != nullptr) memory->Close();
  }
  void End(const absl::Status& reason) override { FinishAfterSending(ToGrpc(reason)); }

  // Queues results in the order of their chunks: the front layers' are sent first, since the next
  // forward pass begins with them. Called on any thread.
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    const uint32_t place = ToNumber(result->chunk);
    if (with_payload && !result->shared_header.empty()) {
      const std::shared_ptr<MemberMemory> memory = Memory();
      if (memory != nullptr && memory->IsMapped(result->group) && memory->Lend(result)) {
        traffic_.sent.Add(PayloadPath::kSharedMemory, result->codec, result->payload.size());
        grpc::Slice header(result->shared_header);
        return Enqueue(grpc::ByteBuffer(&header, 1), place);
      }
    }
    if (with_payload && !result->payload.empty()) {
      traffic_.sent.Add(path_, result->codec, result->payload.size());
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
      return FinishAfterSending({grpc::StatusCode::INVALID_ARGUMENT, "a message is malformed"});
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
    presence_->RecordMessage(clock_.Now());
    SetUnreadLimit();
    Payload payload{std::move(push->payload), std::move(slices)};
    const size_t bytes = TotalBytes(payload.pieces);
    if (bytes >= kManyBytes && path_ == PayloadPath::kTcp) UnparkPollers();
    if (const std::shared_ptr<MemberMemory> memory = Memory(); memory != nullptr) {
      memory->TakeBack(push->header.group, push->header.chunk, push->header.round);
    }
    if (!push->header.shared.empty()) {
      absl::StatusOr<Payload> shared = FindShared(push->header, payload);
      if (!shared.ok()) return Refuse(push->header, shared.status());
      payload = *std::move(shared);
      traffic_.received.Add(PayloadPath::kSharedMemory, push->header.codec,
                            TotalBytes(payload.pieces));
    } else if (bytes > 0) {
      traffic_.received.Add(path_, push->header.codec, bytes);
    }
    const TraceSpan span(kTraceReceive,
                         TraceArgs::Of(push->header.round, trace_job_, push->header.group,
                                       push->header.chunk, push->header.member));
    job_->Push(push->header, std::move(payload),
               std::static_pointer_cast<ExchangeStream>(shared_from_this()));
  }

  void SetUnreadLimit() {
    UnreadBytes& unread = presence_->unread();
    const size_t limit =
        std::max(Presence::kLeastUnreadLimit, kMaxUnreadRounds * job_->result_bytes());
    if (unread.limit() != limit) unread.set_limit(limit);
  }

  absl::StatusOr<Payload> FindShared(const PushHeader& header, const Payload& payload) {
    if (!payload.pieces.empty()) {
      return absl::InvalidArgumentError("a push has both a payload and pieces in shared memory");
    }
    const std::shared_ptr<MemberMemory> memory = Memory();
    // If this server has restarted, the worker may not have handed its memory over again yet. The
    // worker retries after Unavailable.
    if (memory == nullptr)
      return absl::UnavailableError("this worker shares no memory with this server");
    return memory->Find(header.shared);
  }

  // The memory that the member shares with this server; null if there is none yet. Called on any
  // thread.
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
           absl::StrCat("the worker uses protocol version ", hello.protocol_version,
                        ", this server uses ", kProtocolVersion)});
    }
    std::shared_ptr<Job> job = jobs_.Find(hello.job);
    absl::StatusOr<std::shared_ptr<Presence>> presence = Admitted(job.get(), hello);
    if (!presence.ok()) return FinishAfterSending(ToGrpc(presence.status()));
    const auto self = std::static_pointer_cast<ExchangeStream>(shared_from_this());
    const absl::Status added = (*presence)->AddStream(self);
    if (!added.ok()) return FinishAfterSending(ToGrpc(added));
    presence_ = *std::move(presence);
    CountIn({presence_, &presence_->unread()});
    trace_job_ = TraceJob(hello.job);
    {
      MutexLock lock(memory_mutex_);
      hello_ = hello;
      job_ = std::move(job);
    }
    if (!hello.host_id.empty()) Welcome(hello.host_id);
  }

  // `job` is null if it is not open here.
  absl::StatusOr<std::shared_ptr<Presence>> Admitted(Job* job, const DataHello& hello) {
    // A member's secret is enough: its token may have been replaced since it has joined. The secret
    // has 128 random bits, so that guesses of it need not be slowed.
    const bool is_member = job != nullptr && job->IsSecretOf(hello.member, hello.member_secret);
    const StreamCredential credential =
        access_.has_rules() ? StreamCredential::kSecret : StreamCredential::kSecretOrToken;
    if (is_member) {
      access_.Admitted(caller_);
      return job->Admit(hello, credential);
    }
    Caller caller = caller_;
    if (!hello.token.empty()) caller.token = hello.token;
    // Before every other answer: the others say which jobs and members there are.
    SYNCGRADS_RETURN_IF_ERROR(access_.Check(caller, Action::kJoin, hello.job));
    if (access_.has_rules() && hello.member_secret.empty()) {
      return absl::PermissionDeniedError(
          "this server has rules, so a stream needs a member_secret");
    }
    // A server that has just started may not know the job or its members yet: workers retry.
    if (job == nullptr) {
      return absl::UnavailableError(absl::StrCat("no job \"", hello.job, "\" is open here"));
    }
    absl::StatusOr<std::shared_ptr<Presence>> presence = job->Admit(hello, credential);
    if (!presence.ok() && !access_.has_rules()) return access_.Count(caller, presence.status());
    return presence;
  }

  void Welcome(const std::string& host_id) {
    UpdateHeader header;
    header.generation = job_->generation();
    header.welcome = service_.WelcomeFor(host_id, HostOfPeer(peer_));
    grpc::Slice slice(EncodeHeader(header, 0));
    Enqueue(grpc::ByteBuffer(&slice, 1));
  }

  void OnOver() override {
    if (presence_ != nullptr) presence_->RemoveStream(this);
    // An open round of the job may still reference this stream: without this reset, the stream
    // and the job would keep each other alive.
    MutexLock lock(memory_mutex_);
    job_ = nullptr;
    memory_ = nullptr;
  }

  const DataService& service_;
  const Jobs& jobs_;
  const MemoryExchange* const exchange_;
  Access& access_;
  const Caller caller_;
  const Clock& clock_;
  Traffic& traffic_;
  const std::string peer_;
  // The path of the payloads that are sent on this stream.
  const PayloadPath path_;
  DataHello hello_;
  std::shared_ptr<Job> job_;
  std::shared_ptr<Presence> presence_;
  uint32_t trace_job_ = 0;
  // Guards `memory_`, and `job_` and `hello_` as follows. Only the calls of OnMessage and OnOver,
  // of which one runs at a time, write `job_` and `hello_`, with the mutex held; they read them
  // without it. Other threads read them, in Memory(), with the mutex held.
  Mutex memory_mutex_;
  std::shared_ptr<MemberMemory> memory_ ABSL_GUARDED_BY(memory_mutex_);
};

}  // namespace

DataWelcome DataService::WelcomeFor(const std::string& host_id,
                                    const std::string& peer_host) const {
  if (host_id_.empty() || host_id != host_id_) return {"", "the server is on another host", ""};
  // In another network namespace, a process of another user may listen at the sockets' names.
  if (!IsOwnAddress(peer_host)) {
    return {"", absl::StrCat("the server is in another network namespace than ", peer_host), ""};
  }
  if (exchange_ == nullptr)
    return {"", "shared memory is not available on the server", unix_socket_};
  return {exchange_->address(), "", unix_socket_};
}

void DataService::Start(std::unique_ptr<StreamCall> call, Caller caller, std::string peer) {
  std::make_shared<ExchangeStream>(std::move(call), std::move(caller), std::move(peer), deadlines_,
                                   *this, jobs_, exchange_, access_, clock_, traffic_)
      ->Start();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DataService::Exchange(
    grpc::CallbackServerContext* context) {
  auto call = std::make_unique<GrpcStreamCall>(context, connections_);
  GrpcStreamCall* const reactor = call.get();
  Start(std::move(call), CallerOf(*context), context->peer());
  return reactor;
}

void DataService::ExchangeLocally(FileDescriptor connection, SocketLoop& loop) {
  const std::string peer = "unix:";
  Start(std::make_unique<LocalStreamCall>(std::move(connection), kMaxHelloBytes, kMaxMessageBytes,
                                          loop),
        Caller{.peer = AddressOfPeer(peer), .connection = EndpointOfPeer(peer)}, peer);
}

}  // namespace syncgrads::server
