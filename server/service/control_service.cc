#include "server/service/control_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/protocol.h"
#include "common/shm/host.h"
#include "server/service/duplex_stream.h"
#include "server/service/signals.h"
#include "server/service/status.h"

namespace syncgrads::server {
namespace {

// The host part of gRPC's name for a peer, e.g. of "ipv4:10.0.0.1:5000" or
// "ipv6:%5B::1%5D:5000". Peers without one (unix sockets) are on this machine.
std::string HostOfPeer(const std::string& peer) {
  const std::string decoded = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const size_t begin = decoded.find(':');
  const size_t end = decoded.rfind(':');
  const bool internet = absl::StartsWith(decoded, "ipv4:") || absl::StartsWith(decoded, "ipv6:");
  if (!internet || end <= begin) return "127.0.0.1";
  return decoded.substr(begin + 1, end - begin - 1);
}

// One worker's Join stream.
class JoinStream : public DuplexStream<v1::WorkerSignal, v1::JobSignal>, public MemberLink {
 public:
  JoinStream(Coordinator& coordinator, std::string peer_host)
      : coordinator_(coordinator), peer_host_(std::move(peer_host)) {}

  void Send(Generation generation, const JobSignal& signal) override {
    Enqueue(ToProto(generation, signal));
    if (const auto* expelled = std::get_if<Expelled>(&signal)) {
      FinishAfterSending(ToGrpc(expelled->reason));
    } else if (std::holds_alternative<Farewell>(signal)) {
      FinishAfterSending(grpc::Status::OK);
    }
  }

 private:
  void OnMessage(v1::WorkerSignal& signal) override {
    if (signal.has_hello()) return OnHello(signal.hello());
    if (!member_.has_value()) {
      return FinishAfterSending({grpc::StatusCode::FAILED_PRECONDITION,
                                 "the first signal of a Join stream must be a hello"});
    }
    const absl::Status heard = Hear(signal, *member_, coordinator_);
    if (!heard.ok()) FinishAfterSending(ToGrpc(heard));
  }

  void OnHello(const v1::Hello& hello) {
    if (member_.has_value()) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION, "a second hello on one Join stream"});
    }
    Introduction introduction = FromProto(hello);
    // A container has its host's id, and another network, over which no memory is
    // handed over.
    introduction.shares_memory = !hello.host_id().empty() && hello.host_id() == HostId() &&
                                 (absl::StartsWith(peer_host_, "127.") || peer_host_ == "[::1]");
    absl::StatusOr<Coordinator::MemberKey> member =
        coordinator_.Admit(introduction, std::static_pointer_cast<JoinStream>(shared_from_this()));
    if (!member.ok()) return FinishAfterSending(ToGrpc(member.status()));
    member_ = *std::move(member);
  }

  void OnOver() override {
    if (member_.has_value()) coordinator_.LinkBroken(*member_, this);
  }

  Coordinator& coordinator_;
  const std::string peer_host_;
  std::optional<Coordinator::MemberKey> member_;
};

// One server's Follow stream.
class FollowStream : public DuplexStream<v1::ServerSignal, v1::PlanSignal>, public ServerLink {
 public:
  FollowStream(Coordinator& coordinator, const std::string& server_token, std::string peer)
      : coordinator_(coordinator), server_token_(server_token), peer_(std::move(peer)) {}

  void Send(const PlanChange& change) override { Enqueue(ToProto(change)); }

 private:
  void OnMessage(v1::ServerSignal& signal) override {
    if (signal.has_hello() != !server_.has_value()) {
      return FinishAfterSending({grpc::StatusCode::FAILED_PRECONDITION,
                                 "the first signal of a Follow stream, and no other, is a hello"});
    }
    if (signal.has_hello()) OnHello(signal.hello());
    if (!server_.has_value()) return;  // refused
    const absl::Status heard = Hear(signal, *server_, this, coordinator_);
    if (!heard.ok()) FinishAfterSending(ToGrpc(heard));
  }

  void OnHello(const v1::ServerHello& hello) {
    if (hello.protocol_version() != kProtocolVersion) {
      return FinishAfterSending(
          {grpc::StatusCode::FAILED_PRECONDITION,
           absl::StrCat("the server speaks protocol version ", hello.protocol_version(),
                        ", its coordinator speaks ", kProtocolVersion)});
    }
    if (hello.token() != server_token_) {
      return FinishAfterSending(
          {grpc::StatusCode::PERMISSION_DENIED, "the servers' token is another"});
    }
    ServerIdentity identity{ServerIndex{hello.index()}, hello.address(),
                            Incarnation{hello.incarnation()}, hello.applied(), hello.plan()};
    if (absl::StartsWith(identity.address, ":")) {
      identity.address = HostOfPeer(peer_) + identity.address;
    }
    const absl::Status attached = coordinator_.AttachServer(
        identity, std::static_pointer_cast<FollowStream>(shared_from_this()));
    if (!attached.ok()) return FinishAfterSending(ToGrpc(attached));
    server_ = identity.index;
  }

  void OnOver() override {
    if (server_.has_value()) coordinator_.DetachServer(*server_, this);
  }

  Coordinator& coordinator_;
  const std::string server_token_;
  const std::string peer_;
  std::optional<ServerIndex> server_;
};

// A stream that is refused from the start.
template <typename In, typename Out>
class RefusedStream : public grpc::ServerBidiReactor<In, Out> {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

ControlService::ControlService(Coordinator* coordinator, std::string coordinator_address,
                               std::string server_token)
    : coordinator_(coordinator),
      coordinator_address_(std::move(coordinator_address)),
      server_token_(std::move(server_token)) {}

grpc::ServerBidiReactor<v1::WorkerSignal, v1::JobSignal>* ControlService::Join(
    grpc::CallbackServerContext* context) {
  if (coordinator_ == nullptr) {
    return new RefusedStream<v1::WorkerSignal, v1::JobSignal>(
        {grpc::StatusCode::FAILED_PRECONDITION,
         absl::StrCat("this server is not the coordinator; join at ", coordinator_address_)});
  }
  auto stream = std::make_shared<JoinStream>(*coordinator_, HostOfPeer(context->peer()));
  stream->Start();
  return stream.get();
}

grpc::ServerBidiReactor<v1::ServerSignal, v1::PlanSignal>* ControlService::Follow(
    grpc::CallbackServerContext* context) {
  if (coordinator_ == nullptr) {
    return new RefusedStream<v1::ServerSignal, v1::PlanSignal>(
        {grpc::StatusCode::FAILED_PRECONDITION,
         absl::StrCat("this server is not the coordinator; follow ", coordinator_address_)});
  }
  auto stream = std::make_shared<FollowStream>(*coordinator_, server_token_, context->peer());
  // Tells a server that it has reached its coordinator, before there is anything to say.
  stream->StartSendInitialMetadata();
  stream->Start();
  return stream.get();
}

grpc::ServerUnaryReactor* ControlService::Probe(grpc::CallbackServerContext* context,
                                                const v1::ProbeRequest*, v1::ProbeReply*) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace syncgrads::server
