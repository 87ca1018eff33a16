// A worker that uses a real server like any gRPC client: with the stubs that protoc generates.

#ifndef SYNCGRADS_TESTS_SERVER_SERVICE_STUB_WORKER_H_
#define SYNCGRADS_TESTS_SERVER_SERVICE_STUB_WORKER_H_

#include <grpcpp/create_channel.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"

namespace syncgrads::server {

inline constexpr absl::Duration kPatience = absl::Minutes(2);

inline std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

inline void ExpectStatus(const grpc::Status& status, grpc::StatusCode code,
                         std::initializer_list<std::string> parts) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  for (const std::string& part : parts)
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(part));
}

// Returns a context with a deadline, so that no call hangs the test.
inline std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  return context;
}

// A bidirectional stream that is cancelled when it goes out of scope. Not thread-safe.
template <typename Out, typename In>
class Stream {
 public:
  using Opened = std::unique_ptr<grpc::ClientReaderWriterInterface<Out, In>>;

  template <typename Open>
  explicit Stream(Open open) : context_(Context()), stream_(open(context_.get())) {}
  ~Stream() {
    if (stream_ == nullptr || finished_) return;
    context_->TryCancel();
    In in;
    while (stream_->Read(&in)) {
    }
    stream_->Finish();
  }

  bool Write(const Out& out) { return stream_->Write(out); }
  bool Read(In& in) { return stream_->Read(&in); }
  In MustRead() {
    In in;
    EXPECT_TRUE(Read(in)) << "the stream has ended";
    return in;
  }
  // Reads until the stream ends, and returns its status.
  grpc::Status Finish() {
    In in;
    while (stream_->Read(&in)) {
    }
    finished_ = true;
    return stream_->Finish();
  }
  void Break() { context_->TryCancel(); }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  Opened stream_;
  bool finished_ = false;
};

// A control stream (Control.Join).
class JoinStream : public Stream<v1::WorkerSignal, v1::JobSignal> {
 public:
  explicit JoinStream(const std::string& address)
      : JoinStream(v1::Control::NewStub(ChannelTo(address))) {}

  // Returns the first signal of the given kind. Signals before it are discarded.
  v1::JobSignal Await(v1::JobSignal::KindCase kind) {
    v1::JobSignal signal;
    while (Read(signal)) {
      if (signal.kind_case() == kind) return signal;
    }
    ADD_FAILURE() << "the stream ended before a signal of kind " << kind;
    return {};
  }

 private:
  explicit JoinStream(std::unique_ptr<v1::Control::Stub> stub)
      : Stream([&stub](grpc::ClientContext* context) { return stub->Join(context); }) {}
};

// A data stream (Data.Exchange).
class DataStream : public Stream<v1::PushChunk, v1::UpdateChunk> {
 public:
  explicit DataStream(const std::string& address) : DataStream(ChannelTo(address)) {}
  explicit DataStream(const std::shared_ptr<grpc::Channel>& channel)
      : DataStream(v1::Data::NewStub(channel)) {}

 private:
  explicit DataStream(std::unique_ptr<v1::Data::Stub> stub)
      : Stream([&stub](grpc::ClientContext* context) { return stub->Exchange(context); }) {}
};

inline v1::WorkerSignal HelloOf(const std::string& name, uint32_t world_size) {
  static uint64_t next_incarnation = 1000;
  v1::WorkerSignal signal;
  v1::Hello& hello = *signal.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_job("iris");
  hello.set_token("secret");
  hello.set_name(name);
  hello.set_incarnation(next_incarnation++);
  hello.set_world_size(world_size);
  return signal;
}

// Returns a message that registers "model": one tensor, "w", of four f32 values, with an average
// rule.
inline v1::WorkerSignal RegisterModel(v1::DType dtype = v1::F32) {
  v1::WorkerSignal signal;
  signal.mutable_register_group()->set_request(1);
  v1::GroupSpec& spec = *signal.mutable_register_group()->mutable_spec();
  spec.set_name("model");
  v1::TensorSpec& tensor = *spec.add_tensors();
  tensor.set_name("w");
  tensor.set_dtype(dtype);
  tensor.add_shape(4);
  spec.mutable_rule()->set_reduction(v1::AVERAGE);
  return signal;
}

inline std::string FourOf(float value) {
  const std::vector<float> values(4, value);
  return std::string(reinterpret_cast<const char*>(values.data()), 16);
}

// One worker with a control stream and, on request, data streams. Call Begin on all members of a
// job: each one waits for the first epoch.
class Worker {
 public:
  Worker(const std::string& address, const std::string& name, uint32_t world_size)
      : address_(address), hello_(HelloOf(name, world_size)), join_(address) {
    join_.Write(hello_);
  }

  // Waits for the first epoch and registers "model".
  void Begin() { Begin(RegisterModel()); }
  // Waits for the first epoch and registers a group.
  void Begin(const v1::WorkerSignal& registration) {
    const v1::JobSignal welcome = join_.Await(v1::JobSignal::kWelcome);
    member_ = welcome.welcome().member();
    generation_ = welcome.generation();
    join_.Await(v1::JobSignal::kEpoch);
    join_.Write(registration);
    join_.Await(v1::JobSignal::kRegistered);
  }

  v1::PushChunk DataHello() const {
    v1::PushChunk push;
    v1::DataHello& hello = *push.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_job("iris");
    hello.set_token("secret");
    hello.set_member(member_);
    hello.set_incarnation(hello_.hello().incarnation());
    return push;
  }
  v1::PushChunk Push(uint64_t round, float value) const {
    v1::PushChunk push;
    push.set_generation(generation_);
    push.set_round(round);
    push.set_member(member_);
    push.set_incarnation(hello_.hello().incarnation());
    push.set_payload(FourOf(value));
    return push;
  }
  // Opens a data stream and sends the hello.
  std::unique_ptr<DataStream> Exchange() const { return Exchange(ChannelTo(address_)); }
  std::unique_ptr<DataStream> Exchange(const std::shared_ptr<grpc::Channel>& channel) const {
    auto stream = std::make_unique<DataStream>(channel);
    stream->Write(DataHello());
    return stream;
  }

  JoinStream& join() { return join_; }
  uint32_t member() const { return member_; }

 private:
  const std::string address_;
  v1::WorkerSignal hello_;
  JoinStream join_;
  uint32_t member_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_SERVICE_STUB_WORKER_H_
