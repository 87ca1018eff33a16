// A gRPC service whose requests are parsed here rather than by gRPC, which would parse any number
// of bytes before a method may refuse its caller.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLBACK_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_CALLBACK_SERVICE_H_

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
#include "common/rpc/parse_message.h"
#include "common/rpc/status.h"
#include "server/service/refused_stream.h"

namespace syncgrads::server {

// The maximum size of a request that a method is given parsed. The longest names, tokens and
// reasons have a tenth of this together.
inline constexpr size_t kMaxRequestBytes = size_t{64} << 10;

// The methods of a service of our .proto files. A subclass serves each of them, in its constructor.
class CallbackService : public grpc::Service {
 protected:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  explicit CallbackService(const google::protobuf::ServiceDescriptor& service) : service_(service) {
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      names_.push_back(absl::StrCat("/", service.full_name(), "/", method.name()));
      AddMethod(new grpc::internal::RpcServiceMethod(names_.back().c_str(), TypeOf(method),
                                                     /*handler=*/nullptr));
    }
  }

  // `answer` has to use the request before it returns. A request that is malformed or has more than
  // kMaxRequestBytes is answered with InvalidArgument or ResourceExhausted.
  template <typename Request, typename Reply>
  void ServeUnary(
      absl::string_view method,
      std::function<grpc::ServerUnaryReactor*(Context*, const Request&, Reply*)> answer) {
    ServeUnaryBytes<Reply>(method,
                           [answer = std::move(answer)](Context* context, Bytes& bytes,
                                                        Reply* reply) -> grpc::ServerUnaryReactor* {
                             Request request;
                             const absl::Status parsed = Parse(bytes, request);
                             if (parsed.ok()) return answer(context, request, reply);
                             grpc::ServerUnaryReactor* const refused = context->DefaultReactor();
                             refused->Finish(ToGrpc(parsed));
                             return refused;
                           });
  }
  // The same, without a limit: `answer` is given the bytes.
  template <typename Reply>
  void ServeUnaryBytes(absl::string_view method,
                       std::function<grpc::ServerUnaryReactor*(Context*, Bytes&, Reply*)> answer) {
    using Handler = grpc::internal::CallbackUnaryHandler<Bytes, Reply>;
    Serve(method, new Handler([answer = std::move(answer)](Context* context, const Bytes* request,
                                                           Reply* reply) {
            Bytes bytes = *request;
            return answer(context, bytes, reply);
          }));
  }
  // The same for a method whose answer is a stream.
  template <typename Request, typename Reply>
  void ServeStream(
      absl::string_view method,
      std::function<grpc::ServerWriteReactor<Reply>*(Context*, const Request&)> answer) {
    using Handler = grpc::internal::CallbackServerStreamingHandler<Bytes, Reply>;
    Serve(method, new Handler([answer = std::move(answer)](Context* context, const Bytes* request)
                                  -> grpc::ServerWriteReactor<Reply>* {
            Bytes bytes = *request;
            Request parsed;
            const absl::Status status = Parse(bytes, parsed);
            if (!status.ok()) return new RefusedStream<Reply>(status);
            return answer(context, parsed);
          }));
  }
  void ServeBidi(absl::string_view method,
                 std::function<grpc::ServerBidiReactor<Bytes, Bytes>*(Context*)> begin) {
    Serve(method, new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(std::move(begin)));
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
  static grpc::internal::RpcMethod::RpcType TypeOf(
      const google::protobuf::MethodDescriptor& method) {
    using grpc::internal::RpcMethod;
    if (!method.server_streaming()) return RpcMethod::NORMAL_RPC;
    return method.client_streaming() ? RpcMethod::BIDI_STREAMING : RpcMethod::SERVER_STREAMING;
  }

  static absl::Status Parse(Bytes& bytes, google::protobuf::Message& request) {
    static_assert(kMaxRequestBytes <= kParsedAnyway);
    return ParseUpTo(kMaxRequestBytes, /*most_parts=*/0, bytes, request);
  }

  void Serve(absl::string_view method, grpc::internal::MethodHandler* handler) {
    MarkMethodRawCallback(service_.FindMethodByName(std::string(method))->index(), handler);
  }

  const google::protobuf::ServiceDescriptor& service_;
  // The paths of the methods, to which gRPC has pointers.
  std::deque<std::string> names_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLBACK_SERVICE_H_
