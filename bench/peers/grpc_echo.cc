// A bare gRPC stream of raw buffers: the cost of a round trip without an average.
//
//   grpc_echo serve ADDRESS             prints "listening on PORT"
//   grpc_echo ADDRESS CONDUCTOR BYTES   a step sends BYTES and receives them back

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/conducted.h"

namespace syncgrads::bench {
namespace {

class Echo : public grpc::ServerGenericBidiReactor {
 public:
  Echo() { StartRead(&buffer_); }
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&buffer_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&buffer_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer buffer_;
};

class EchoService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Echo;
  }
};

class Caller : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Caller(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    stub_.PrepareBidiStreamingCall(&context_, "/bench/Echo", grpc::StubOptions(), this);
    AddHold();
    StartCall();
  }

  // Sends the values without a copy, and replaces them by the bytes that come back.
  void RoundTrip(std::vector<float>& values) {
    answered_ = {};
    written_ = {};
    grpc::Slice slice(values.data(), values.size() * sizeof(float), grpc::Slice::STATIC_SLICE);
    outgoing_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&outgoing_);
    StartRead(&incoming_);
    if (!answered_.get_future().get() || !written_.get_future().get()) {
      std::cerr << "the stream has ended" << std::endl;
      std::_Exit(1);
    }
    std::vector<grpc::Slice> slices;
    if (!incoming_.Dump(&slices).ok()) std::_Exit(1);
    char* to = reinterpret_cast<char*>(values.data());
    for (const grpc::Slice& piece : slices) {
      std::memcpy(to, piece.begin(), piece.size());
      to += piece.size();
    }
  }

  void HangUp() {
    StartWritesDone();
    RemoveHold();
    done_.get_future().wait();
  }

  void OnReadDone(bool ok) override { answered_.set_value(ok); }
  void OnWriteDone(bool ok) override { written_.set_value(ok); }
  void OnDone(const grpc::Status&) override { done_.set_value(); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::promise<bool> answered_, written_;
  std::promise<void> done_;
};

int Serve(const std::string& address) {
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  std::cout << "listening on " << port << std::endl;
  server->Wait();
  return 0;
}

int Call(const std::string& address, const std::string& conductor, size_t bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  std::vector<float> data(bytes / sizeof(float));
  Values values(data.data(), data.data(), data.size(), /*rank=*/0, /*world_size=*/1);
  Caller caller(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  const int code = FollowConductor(conductor, 0, values, [&] { caller.RoundTrip(data); });
  caller.HangUp();
  return code;
}

}  // namespace
}  // namespace syncgrads::bench

int main(int argc, char** argv) {
  using namespace syncgrads::bench;
  if (argc == 3 && std::string(argv[1]) == "serve") return Serve(argv[2]);
  if (argc == 4) return Call(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  return 2;
}
