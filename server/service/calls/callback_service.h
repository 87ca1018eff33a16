// A gRPC service whose requests are parsed here rather than by gRPC, which would parse any number
// of bytes before a method may refuse its caller.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_CALLBACK_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_CALLBACK_SERVICE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/open_connections.h"
#include "common/rpc/parse_message.h"
#include "common/status_macros.h"
#include "server/service/calls/request_call.h"
#include "server/service/calls/stream_deadlines.h"

namespace syncgrads::server {

// The maximum size of a request that a method is given parsed. The longest names, tokens and
// reasons have a tenth of this together.
inline constexpr size_t kMaxRequestBytes = size_t{64} << 10;

// The methods of a service of our .proto files. A subclass serves each of them, in its constructor.
class CallbackService : public grpc::Service {
 protected:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  // `connections` and `deadlines` must outlive this object and its calls.
  CallbackService(const google::protobuf::ServiceDescriptor& service, OpenConnections& connections,
                  StreamDeadlines& deadlines)
      : service_(service), connections_(connections), deadlines_(deadlines) {
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      names_.push_back(absl::StrCat("/", service.full_name(), "/", method.name()));
      // All methods are streams in both directions to gRPC. RequestCall says why.
      constexpr auto kType = grpc::internal::RpcMethod::BIDI_STREAMING;
      AddMethod(new grpc::internal::RpcServiceMethod(names_.back().c_str(), kType,
                                                     /*handler=*/nullptr));
    }
  }

  OpenConnections& connections() { return connections_; }
  StreamDeadlines& deadlines() { return deadlines_; }

  // A request that is malformed or has more than kMaxRequestBytes is answered with InvalidArgument
  // or ResourceExhausted. If `answer` returns OK, the reply is sent.
  template <typename Request, typename Reply>
  void ServeUnary(absl::string_view method,
                  std::function<absl::Status(RequestCall&, const Request&, Reply&)> answer) {
    ServeUnaryBytes<Reply>(method,
                           [answer = std::move(answer)](RequestCall& call, Bytes& bytes,
                                                        Reply& reply) -> absl::Status {
                             Request request;
                             SYNCGRADS_RETURN_IF_ERROR(Parse(bytes, request));
                             return answer(call, request, reply);
                           });
  }
  // The same, without a limit: `answer` is given the bytes.
  template <typename Reply>
  void ServeUnaryBytes(absl::string_view method,
                       std::function<absl::Status(RequestCall&, Bytes&, Reply&)> answer) {
    ServeRequest(method, [answer = std::move(answer)](RequestCall& call, Bytes& bytes) {
      Reply reply;
      const absl::Status answered = answer(call, bytes, reply);
      if (!answered.ok()) return call.End(answered);
      call.EndWith(reply);
    });
  }
  // The same for a method whose answer is a stream, which `answer` begins or refuses.
  template <typename Request>
  void ServeStream(absl::string_view method,
                   std::function<void(RequestCall&, const Request&)> answer) {
    ServeRequest(method, [answer = std::move(answer)](RequestCall& call, Bytes& bytes) {
      Request request;
      const absl::Status parsed = Parse(bytes, request);
      if (!parsed.ok()) return call.End(parsed);
      answer(call, request);
    });
  }
  void ServeBidi(absl::string_view method,
                 std::function<grpc::ServerBidiReactor<Bytes, Bytes>*(Context*)> begin) {
    MarkMethodRawCallback(service_.FindMethodByName(std::string(method))->index(),
                          new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(std::move(begin)));
  }

  // As ParseMessage. Also ResourceExhausted if there are more than `most_bytes`.
  static absl::Status ParseUpTo(size_t most_bytes, size_t most_parts, Bytes& bytes,
                                google::protobuf::Message& request) {
    if (bytes.Length() <= most_bytes) return ParseMessage(bytes, most_parts, request);
    return absl::ResourceExhaustedError(absl::StrCat("a ", request.GetDescriptor()->name(), " has ",
                                                     bytes.Length(), " bytes; at most ", most_bytes,
                                                     " are permitted"));
  }

 private:
  static absl::Status Parse(Bytes& bytes, google::protobuf::Message& request) {
    static_assert(kMaxRequestBytes <= kParsedAnyway);
    return ParseUpTo(kMaxRequestBytes, /*most_parts=*/0, bytes, request);
  }

  void ServeRequest(absl::string_view method, RequestCall::Answer answer) {
    ServeBidi(method, [this, answer = std::move(answer)](Context* context) {
      return RequestCall::Begin(context, connections_, deadlines_, answer);
    });
  }

  const google::protobuf::ServiceDescriptor& service_;
  OpenConnections& connections_;
  StreamDeadlines& deadlines_;
  // The paths of the methods, to which gRPC has pointers.
  std::deque<std::string> names_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_CALLBACK_SERVICE_H_
