// A server that names a unix socket that is not its own, and a link to it.

#ifndef SYNCGRADS_TESTS_CLIENT_MISLED_H_
#define SYNCGRADS_TESTS_CLIENT_MISLED_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/grpc/grpc_transport.h"
#include "client/link/send_window.h"
#include "client/link/server_link.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "proto/data.grpc.pb.h"
#include "tests/client/reported_paths.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {

// A server that welcomes every stream and answers every push, but reports the name of a unix socket
// that another process listens at, or none.
class Misled : public v1::Data::Service {
 public:
  explicit Misled(std::string named) : named_(std::move(named)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Misled() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Exchange(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::UpdateChunk, v1::PushChunk>* stream) override {
    v1::PushChunk push;
    while (stream->Read(&push)) {
      v1::UpdateChunk update;
      if (push.has_hello()) {
        update.mutable_welcome()->set_refusal("no memory here");
        update.mutable_welcome()->set_local_stream(named_);
      } else {
        update.set_chunk(push.chunk());
        update.set_round(push.round());
      }
      stream->Write(update);
    }
    return grpc::Status::OK;
  }

 private:
  const std::string named_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Sends a push to `server` over a new link. Returns the lines that the link has reported when there
// are `lines` of them and the push has been answered.
inline std::vector<std::string> PushTo(const Misled& server, size_t lines) {
  const std::unique_ptr<client::Transport> transport =
      client::NewGrpcTransport("", MakeConnections());
  client::ThreadTimers timers;
  ReportedPaths paths;
  ReportedPaths answers;
  client::ServerLink::Options options;
  options.address = server.address();
  options.hello.protocol_version = 1;
  options.hello.host_id = "this host";
  options.window = std::make_shared<client::SendWindow>(timers);
  options.server_timeout = kTimeout;
  options.on_path = [record = paths.Recorder()](const client::PathReport& report) {
    record(report.line);
  };
  options.on_update = [answered = answers.Recorder()](const UpdateFrame&, const auto&) {
    answered("");
    return absl::OkStatus();
  };
  options.on_lost = [](absl::Status status) { ADD_FAILURE() << status; };
  const auto link = std::make_shared<client::ServerLink>(std::move(options), *transport, timers);
  link->Start();
  const absl::Time deadline = absl::Now() + kTimeout;
  EXPECT_TRUE(paths.AwaitCount(lines, deadline));
  PushHeader header;
  header.round = Round{1};
  link->Send({GroupId{}, ChunkId{}, Round{1}}, /*made_in=*/1,
             std::make_shared<const client::OutgoingMessage>(EncodeHeader(header, 0), Pieces(),
                                                             nullptr, nullptr));
  EXPECT_TRUE(answers.AwaitCount(1, deadline));
  link->Stop();
  link->AwaitStopped();
  timers.Stop();
  return paths.lines();
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_CLIENT_MISLED_H_
