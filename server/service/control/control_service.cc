#include "server/service/control/control_service.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "common/contract/trace.h"
#include "common/group/layout.h"
#include "common/net/address.h"
#include "common/rpc/parse_message.h"
#include "common/rpc/peer_address.h"
#include "common/rpc/status.h"
#include "common/shm/host.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/access/caller.h"
#include "server/service/calls/duplex_stream.h"
#include "server/service/calls/grpc_stream_call.h"
#include "server/service/control/signals.h"

namespace syncgrads::server {
namespace {

// The limits of bytes that wait for a peer of the control plane to read. The plan of a group with
// 10,000 tensors has some hundred KiB; a follower that has just started is sent the plans of all
// groups.
constexpr size_t kMaxUnreadByWorker = size_t{16} << 20;
constexpr size_t kMaxUnreadByServer = size_t{256} << 20;
// Back-pressure: if this many bytes of answers wait for a worker, its messages are not read.
constexpr size_t kPauseWorkerAt = size_t{1} << 20;
// The maximum size of a Probe, and of the padding that it is answered with.
constexpr size_t kMaxProbeBytes = size_t{1} << 20;
constexpr uint32_t kMaxProbeReply = uint32_t{256} << 10;
// The maximum size of a TraceReport, and the maximum number of its parts (ParseMessage): each event
// may have a round, and be the first of its name and of its thread. Names are short.
constexpr size_t kMaxTraceBytes = size_t{1} << 20;
constexpr size_t kMostTraceParts = 4 * kTracePartEvents + 16;
// The maximum number of parts of a message on a stream: each tensor of a group may have a
// compression with two encodings, and factors.
constexpr size_t kMostParts = 5 * kMaxTensors + 1024;

// A stream that receives messages of type In and sends messages of type Out. They are parsed and
// serialized here rather than by gRPC: if gRPC cannot parse a message, it ends the stream as if
// the peer had closed it, without an error.
template <typename In, typename Out>
class SignalStream : public DuplexStream {
 protected:
  using DuplexStream::DuplexStream;

  virtual void OnSignal(In& signal) = 0;

  void SendSignal(const Out& signal) {
    grpc::ByteBuffer buffer;
    bool own_buffer;
    const grpc::Status made =
        grpc::GenericSerialize<grpc::ProtoBufferWriter, Out>(signal, &buffer, &own_buffer);
    if (!made.ok()) return FinishAfterSending(made);
    Enqueue(buffer);
  }

 private:
  void OnMessage(grpc::ByteBuffer& message) override {
    In signal;
    const absl::Status parsed = ParseMessage(message, kMostParts, signal);
    if (!parsed.ok()) return FinishAfterSending(ToGrpc(parsed));
    OnSignal(signal);
  }
};

// The byte with which a WorkerSignal begins that registers a group: the number of the field, and
// the mark of a field with a length.
constexpr uint8_t kRegisterGroupTag = v1::WorkerSignal::kRegisterGroupFieldNumber << 3 | 2;

// Returns 0 if the message is empty. No field begins with it.
uint8_t FirstByte(grpc::ByteBuffer& message) {
  grpc::ProtoBufferReader reader(&message);
  const void* data = nullptr;
  int size = 0;
  return reader.Next(&data, &size) && size > 0 ? *static_cast<const uint8_t*>(data) : 0;
}

// One worker's Join stream. Owned as DuplexStream describes. `member_` is used only by OnMessage,
// OnOver and TurnsOf, of which one call runs at a time. `shares_memory_` is set before Admit, which
// is the only reader.
class JoinStream : public SignalStream<v1::WorkerSignal, v1::JobSignal>, public MemberLink {
 public:
  JoinStream(std::unique_ptr<StreamCall> call, const grpc::CallbackServerContext& context,
             StreamDeadlines& deadlines, ControlThreads& threads, Coordinator& coordinator,
             Access& access, SerializedSignals& serialized, StreamCount& members, EventLog& events)
      : SignalStream(std::move(call), deadlines,
                     std::make_shared<UnreadBytes>(kMaxUnreadByWorker, kPauseWorkerAt), &threads),
        coordinator_(coordinator),
        access_(access),
        caller_(CallerOf(context)),
        serialized_(serialized),
        members_(members),
        events_(events),
        peer_host_(HostOfPeer(context.peer())) {
    access_.StreamBegan(caller_);
  }

  void Send(Generation generation, const JobSignal::Kind& signal) override {
    if (const auto* registered = std::get_if<Registered>(&signal)) {
      return Enqueue(serialized_.Answer(generation, *registered));
    }
    if (const auto* begun = std::get_if<EpochBegun>(&signal)) {
      return Enqueue(serialized_.Begin(generation, *begun));
    }
    SendSignal(syncgrads::ToProto(generation, signal));
    if (const auto* expelled = std::get_if<Expelled>(&signal)) {
      FinishAfterSending(ToGrpc(expelled->reason));
    } else if (std::holds_alternative<Farewell>(signal)) {
      FinishAfterSending(grpc::Status::OK);
    }
  }
  bool shares_memory() const override { return shares_memory_; }
  bool has_unread() const override { return HasUnread(); }

 private:
  MessageWeight WeightOf(grpc::ByteBuffer& message) override {
    begins_as_registration_ = FirstByte(message) == kRegisterGroupTag;
    const MessageWeight weight = SignalStream::WeightOf(message);
    const bool is_short = weight == MessageWeight::kLight;
    return is_short && begins_as_registration_ ? MessageWeight::kRegistration : weight;
  }

  std::string TurnsOf() const override {
    return member_.has_value() ? absl::StrCat("job ", member_->job)
                               : absl::StrCat("network ", NetworkOf(caller_.peer));
  }

  void OnSignal(v1::WorkerSignal& signal) override {
    if (signal.has_register_group() && !begins_as_registration_) {
      return FinishAfterSending({grpc::StatusCode::INVALID_ARGUMENT,
                                 "a signal that registers a group has another field before that"});
    }
    if (signal.has_hello()) return OnHello(syncgrads::FromProto(signal.hello()));
    if (!member_.has_value()) {
      return FinishAfterSending({grpc::StatusCode::FAILED_PRECONDITION,
                                 "the first signal of a Join stream must be a hello"});
    }
    const absl::Status dispatched = Dispatch(signal, *member_, coordinator_);
    if (!dispatched.ok()) FinishAfterSending(ToGrpc(dispatched));
  }

  void OnHello(Hello hello) {
    if (member_.has_value()) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION, "a second hello on one Join stream"});
    }
    // A worker in a container has the host id of its host but may have another network namespace,
    // in which it cannot reach the socket that hands memory over. So its connection must come from
    // this server's namespace too.
    shares_memory_ =
        !hello.host_id.empty() && hello.host_id == HostId() && IsOwnAddress(peer_host_);
    if (!hello.token.empty()) caller_.token = hello.token;
    // A member that reconnects needs only its secret: its token may have been replaced since.
    const absl::Status may_join = access_.Check(caller_, Action::kJoin, hello.job);
    if (access_.has_rules()) {
      hello.token.clear();
      if (hello.member_secret.empty()) {
        return FinishAfterSending({grpc::StatusCode::PERMISSION_DENIED,
                                   "this server has rules, so a worker needs a member_secret"});
      }
    }
    // Before the events of its admission.
    const bool is_first = events_.SetOrigin(hello.job, NetworkOf(caller_.peer));
    absl::StatusOr<Coordinator::MemberKey> member = coordinator_.Admit(
        hello, std::static_pointer_cast<JoinStream>(shared_from_this()), may_join);
    if (!member.ok()) {
      if (is_first) events_.ForgetOrigin(hello.job);
      const absl::Status refused =
          access_.has_rules() ? member.status() : access_.Count(caller_, member.status());
      return FinishAfterSending(ToGrpc(refused));
    }
    // Also a member whose token was replaced since, and which has shown its secret.
    access_.Admitted(caller_);
    member_ = *std::move(member);
    members_.Opened();
  }

  void OnOver() override {
    if (!member_.has_value()) return;
    coordinator_.LinkBroken(*member_, this);
    serialized_.Prune();
    members_.Ended();
  }

  Coordinator& coordinator_;
  Access& access_;
  Caller caller_;  // used by OnMessage and TurnsOf only
  SerializedSignals& serialized_;
  StreamCount& members_;
  EventLog& events_;
  const std::string peer_host_;
  bool shares_memory_ = false;
  bool begins_as_registration_ = false;  // the message that is handled
  std::optional<Coordinator::MemberKey> member_;
};

// Workers connect to a server at its address.
absl::Status CheckIdentity(const ServerIdentity& server) {
  if (server.incarnation == Incarnation{}) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", ToNumber(server.index), " has incarnation 0"));
  }
  return ParseHostPort(absl::StrCat("the address of server ", ToNumber(server.index)),
                       server.address)
      .status();
}

// One server's Follow stream. Owned as DuplexStream describes. `server_` is used only by OnMessage
// and OnOver, of which one call runs at a time. Some rounds wait for its messages, so gRPC's
// threads handle them.
class FollowStream : public SignalStream<v1::ServerSignal, v1::PlanSignal>, public ServerLink {
 public:
  FollowStream(std::unique_ptr<StreamCall> call, const grpc::CallbackServerContext& context,
               StreamDeadlines& deadlines, Coordinator& coordinator, Access& access,
               ServerLoads& loads)
      : SignalStream(std::move(call), deadlines, std::make_shared<UnreadBytes>(kMaxUnreadByServer)),
        coordinator_(coordinator),
        access_(access),
        loads_(loads),
        caller_(CallerOf(context)),
        peer_(context.peer()) {
    access_.StreamBegan(caller_);
  }

  void Send(const PlanChange& change) override { SendSignal(ToProto(change)); }
  void Prepare(const GroupPreparation& preparation) override { SendSignal(ToProto(preparation)); }

 private:
  void OnSignal(v1::ServerSignal& signal) override {
    if (signal.has_hello() != !server_.has_value()) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION,
           "the first signal of a Follow stream must be a hello, and no other signal may be one"});
    }
    if (signal.has_hello()) OnHello(signal.hello());
    if (!server_.has_value()) return;  // refused
    if (signal.has_load()) loads_.Set(*server_, signal.load());
    const absl::Status dispatched = Dispatch(signal, *server_, this, coordinator_);
    if (!dispatched.ok()) FinishAfterSending(ToGrpc(dispatched));
  }

  void OnHello(const v1::ServerHello& hello) {
    if (hello.protocol_version() != kProtocolVersion) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION,
           absl::StrCat("the server uses protocol version ", hello.protocol_version(),
                        ", its coordinator uses ", kProtocolVersion)});
    }
    if (!hello.token().empty()) caller_.token = hello.token();
    const absl::Status permitted = access_.Check(caller_, Action::kFollow, kAllJobs);
    if (!permitted.ok()) return FinishAfterSending(ToGrpc(permitted));
    ServerIdentity identity{ServerIndex{hello.index()}, hello.address(),
                            Incarnation{hello.incarnation()}, hello.applied(), hello.plan()};
    if (absl::StartsWith(identity.address, ":")) {
      identity.address = HostOfPeer(peer_) + identity.address;
    }
    const absl::Status usable = CheckIdentity(identity);
    if (!usable.ok()) return FinishAfterSending(ToGrpc(usable));
    const absl::Status attached = coordinator_.AttachServer(
        identity, std::static_pointer_cast<FollowStream>(shared_from_this()));
    if (!attached.ok()) return FinishAfterSending(ToGrpc(attached));
    server_ = identity.index;
  }

  void OnOver() override {
    if (server_.has_value()) coordinator_.DetachServer(*server_, this);
  }

  Coordinator& coordinator_;
  Access& access_;
  ServerLoads& loads_;
  Caller caller_;  // used by OnMessage only
  const std::string peer_;
  std::optional<ServerIndex> server_;
};

// A stream that is refused at once. Deletes itself.
class RefusedBidi : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RefusedBidi(grpc::CallbackServerContext* context, OpenConnections& connections,
              const grpc::Status& status)
      : call_(context, connections) {
    Finish(status);
  }

 private:
  void OnDone() override { delete this; }

  CancellableCall call_;
};

}  // namespace

ControlService::ControlService(Coordinator* coordinator, std::string coordinator_address,
                               Access& access, OpenConnections& connections,
                               StreamDeadlines& deadlines, UnaryAnswers& answers, Tracing& tracing,
                               ServerLoads& loads, EventLog& events)
    : CallbackService(*v1::ProbeRequest::descriptor()->file()->service(0), connections, deadlines),
      coordinator_(coordinator),
      coordinator_address_(std::move(coordinator_address)),
      access_(access),
      answers_(answers),
      tracing_(tracing),
      loads_(loads),
      events_(events) {
  ServeBidi("Join", [this](Context* context) { return Join(context); });
  ServeBidi("Follow", [this](Context* context) { return Follow(context); });
  ServeUnaryBytes<v1::ProbeReply>("Probe",
                                  [this](RequestCall& call, Bytes& bytes, v1::ProbeReply& reply) {
                                    return Probe(call, bytes, reply);
                                  });
  ServeUnaryBytes<v1::TraceReportReply>(
      "ReportTrace", [this](const RequestCall& call, Bytes& bytes, v1::TraceReportReply& reply) {
        return ReportTrace(call, bytes, reply);
      });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ControlService::Join(
    Context* context) {
  if (coordinator_ == nullptr) {
    return new RefusedBidi(
        context, connections(),
        {grpc::StatusCode::FAILED_PRECONDITION,
         absl::StrCat("this server is not the coordinator; join at ", coordinator_address_)});
  }
  auto call = std::make_unique<GrpcStreamCall>(context, connections());
  GrpcStreamCall* const reactor = call.get();
  std::make_shared<JoinStream>(std::move(call), *context, deadlines(), threads_, *coordinator_,
                               access_, serialized_, members_, events_)
      ->Start();
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ControlService::Follow(
    Context* context) {
  if (coordinator_ == nullptr) {
    return new RefusedBidi(
        context, connections(),
        {grpc::StatusCode::FAILED_PRECONDITION,
         absl::StrCat("this server is not the coordinator; follow ", coordinator_address_)});
  }
  auto call = std::make_unique<GrpcStreamCall>(context, connections());
  GrpcStreamCall* const reactor = call.get();
  // The initial metadata shows the server that it has reached its coordinator, even if there is no
  // message to send yet.
  reactor->StartSendInitialMetadata();
  std::make_shared<FollowStream>(std::move(call), *context, deadlines(), *coordinator_, access_,
                                 loads_)
      ->Start();
  return reactor;
}

absl::Status ControlService::Probe(RequestCall& call, Bytes& bytes, v1::ProbeReply& reply) {
  const Caller caller = CallerOf(call.context());
  v1::ProbeRequest request;
  SYNCGRADS_RETURN_IF_ERROR(access_.CheckAnyJob(caller, Action::kProbe));
  SYNCGRADS_RETURN_IF_ERROR(ParseUpTo(kMaxProbeBytes, /*most_parts=*/0, bytes, request));
  if (request.reply_bytes() > kMaxProbeReply) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reply of ", request.reply_bytes(), " bytes: at most ", kMaxProbeReply));
  }
  if (request.reply_bytes() == 0) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(answers_.Count(call, caller.peer));
  reply.mutable_padding()->assign(request.reply_bytes(), '\0');
  return absl::OkStatus();
}

absl::Status ControlService::ReportTrace(const RequestCall& call, Bytes& bytes,
                                         v1::TraceReportReply& reply) {
  reply.set_clock_ns(TraceNow());
  v1::TraceReport report;
  SYNCGRADS_RETURN_IF_ERROR(access_.CheckAnyJob(CallerOf(call.context()), Action::kReportTrace));
  SYNCGRADS_RETURN_IF_ERROR(ParseUpTo(kMaxTraceBytes, kMostTraceParts, bytes, report));
  return tracing_.Report(report);
}

}  // namespace syncgrads::server
