// A server that answers as a test wants it to, over real gRPC.

#ifndef SYNCGRADS_TESTS_CLIENT_PSCTL_FAKE_SERVER_H_
#define SYNCGRADS_TESTS_CLIENT_PSCTL_FAKE_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/rpc/build_info.h"
#include "common/shm/host.h"
#include "common/signals/protocol.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::client {

// Returns the status of a healthy server on this host, run by user 7. Server 0 is the coordinator.
inline v1::GetStatusReply HealthyStatus(uint32_t index) {
  v1::GetStatusReply reply;
  reply.set_protocol_version(kProtocolVersion);
  reply.set_server_index(index);
  v1::ServerStatus& server = *reply.mutable_server();
  server.set_uptime_ms(1000);
  server.set_coordinator_reached(true);
  server.set_connections(1);
  server.set_max_connections(100);
  server.set_memory_free_bytes(uint64_t{1} << 40);
  server.set_state_directory("/state");
  server.set_state_free_bytes(uint64_t{1} << 40);
  server.set_host_id(HostId());
  server.set_user_id(7);
  server.set_network_namespace(NetworkNamespace());
  server.set_shares_memory(true);
  const BuildInfo build = ThisBuild();
  server.set_version(build.version);
  server.set_commit(build.commit);
  server.set_grpc_version(build.grpc);
  return reply;
}

// Thread-safe.
class FakeServer {
 public:
  explicit FakeServer(uint32_t index) : admin_(HealthyStatus(index)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&admin_);
    builder.RegisterService(&control_);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~FakeServer() { Stop(); }

  const std::string& address() const { return port_.address(); }
  // Stops listening. No other process gets the port. To be called by one thread.
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_ = nullptr;
  }
  // Changes what it answers.
  template <typename Change>
  void Set(Change change) {
    MutexLock lock(admin_.mutex);
    change(admin_.reply);
  }
  // Adds a server to the list that this one, as the coordinator, answers with.
  void Lists(uint32_t index, const std::string& address) {
    Set([&](v1::GetStatusReply& reply) {
      v1::ServerAddress& one = *reply.mutable_server()->add_servers();
      one.set_index(index);
      one.set_address(address);
      one.set_connected(!address.empty());
    });
  }
  // Answers GetStatus with an error.
  void SetError(grpc::Status error) {
    MutexLock lock(admin_.mutex);
    admin_.error = std::move(error);
  }
  // Changes the events that it has.
  void SetEvents(v1::EventsReply events) {
    MutexLock lock(admin_.mutex);
    admin_.events = std::move(events);
  }
  // A recording begins, and then this reply is sent again and again until the call is cancelled.
  void SetEndlessTrace(v1::TraceReply reply) {
    MutexLock lock(admin_.mutex);
    admin_.trace = std::move(reply);
  }
  // Its clock is this much ahead of the real one.
  void SetClock(absl::Duration ahead) {
    MutexLock lock(admin_.mutex);
    admin_.ahead = ahead;
  }

 private:
  struct FakeAdmin : v1::Admin::Service {
    explicit FakeAdmin(v1::GetStatusReply first) : reply(std::move(first)) {}
    grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                           v1::GetStatusReply* answer) override {
      MutexLock lock(mutex);
      if (!error.ok()) return error;
      *answer = reply;
      answer->mutable_server()->set_date_ms(
          static_cast<uint64_t>(absl::ToUnixMillis(absl::Now() + ahead)));
      return grpc::Status::OK;
    }
    grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest*,
                        grpc::ServerWriter<v1::EventsReply>* writer) override {
      MutexLock lock(mutex);
      writer->Write(events);
      return grpc::Status::OK;
    }
    grpc::Status ReadClock(grpc::ServerContext*, const v1::ReadClockRequest*,
                           v1::ReadClockReply*) override {
      return grpc::Status::OK;
    }
    grpc::Status Trace(grpc::ServerContext*, const v1::TraceRequest*,
                       grpc::ServerWriter<v1::TraceReply>* writer) override {
      v1::TraceReply begun;
      begun.mutable_begun();
      writer->Write(begun);
      const v1::TraceReply again = [this] {
        MutexLock lock(mutex);
        return trace;
      }();
      while (writer->Write(again)) {
      }
      return grpc::Status::OK;
    }

    Mutex mutex;
    v1::GetStatusReply reply ABSL_GUARDED_BY(mutex);
    grpc::Status error ABSL_GUARDED_BY(mutex);
    v1::EventsReply events ABSL_GUARDED_BY(mutex);
    v1::TraceReply trace ABSL_GUARDED_BY(mutex);
    absl::Duration ahead ABSL_GUARDED_BY(mutex);
  };
  struct FakeControl : v1::Control::Service {
    grpc::Status Probe(grpc::ServerContext*, const v1::ProbeRequest* request,
                       v1::ProbeReply* reply) override {
      reply->set_padding(std::string(request->reply_bytes(), '\0'));
      return grpc::Status::OK;
    }
  };

  const testing::ReservedPort port_;
  FakeAdmin admin_;
  FakeControl control_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_TESTS_CLIENT_PSCTL_FAKE_SERVER_H_
