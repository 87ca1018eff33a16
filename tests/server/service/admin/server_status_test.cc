// The status that real servers report.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/build_info.h"
#include "common/shm/host.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Cluster;
using ::syncgrads::testing::WaitUntil;

ServerOptions Patient() {
  ServerOptions options;
  options.lease = absl::Hours(1);
  options.stream_grace = absl::Hours(1);
  options.server_token = "of servers";
  return options;
}

v1::GetStatusReply StatusOf(const std::string& address) {
  v1::GetStatusReply reply;
  const grpc::Status status =
      v1::Admin::NewStub(ChannelTo(address))->GetStatus(Context().get(), {}, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply;
}

uint64_t BytesBy(const std::string& path, const std::string& codec,
                 const google::protobuf::RepeatedPtrField<v1::PayloadBytes>& counts) {
  for (const v1::PayloadBytes& one : counts) {
    if (one.path() == path && one.codec() == codec) return one.bytes();
  }
  ADD_FAILURE() << "no bytes by " << path << " as " << codec;
  return 0;
}

TEST(ServerStatusTest, AJobsMembersRoundsAndTrafficAreReported) {
  Cluster cluster(1, Patient());
  Worker a(cluster.coordinator(), "a", 2), b(cluster.coordinator(), "b", 2);
  a.Begin();
  b.Begin();
  {
    const auto to_a = a.Exchange(), to_b = b.Exchange();
    to_a->Write(a.Push(1, 1));
    to_b->Write(b.Push(1, 3));
    to_a->MustRead();
    to_b->MustRead();
    to_b->Write(b.Push(2, 3));
    ASSERT_TRUE(WaitUntil(
        [&] { return StatusOf(cluster.coordinator()).jobs(0).groups(0).open_chunks() == 1; }));
  }
  const v1::GetStatusReply status = StatusOf(cluster.coordinator());
  EXPECT_EQ(status.protocol_version(), kProtocolVersion);
  ASSERT_EQ(status.jobs_size(), 1);
  const v1::JobStatus& job = status.jobs(0);
  ASSERT_EQ(job.members_size(), 2);
  EXPECT_EQ(job.members(0).name(), "a");
  EXPECT_TRUE(job.members(0).has_rank());
  EXPECT_EQ(job.members(1).rank(), 1u);
  EXPECT_EQ(job.members(1).lease_ms(), 3'600'000u);
  ASSERT_EQ(job.epoch().members_size(), 2);
  EXPECT_EQ(job.epoch().members(0).name(), "a");
  EXPECT_EQ(job.epoch().members(0).incarnation(), 0u);
  EXPECT_EQ(job.joins(), 2u);
  EXPECT_EQ(job.drops_size(), 7);
  ASSERT_EQ(job.groups_size(), 1);
  const v1::GroupStatus& group = job.groups(0);
  EXPECT_EQ(group.open_round(), 2u);
  EXPECT_EQ(group.rounds_closed(), 1u);
  EXPECT_EQ(group.round_duration().counts_size(), 9);
  ASSERT_EQ(group.contributors_size(), 2);
  // Members are numbered in the order in which they were admitted.
  const bool a_is_first = a.member() < b.member();
  const v1::ContributorStatus& of_a = group.contributors(a_is_first ? 0 : 1);
  const v1::ContributorStatus& of_b = group.contributors(a_is_first ? 1 : 0);
  EXPECT_EQ(of_a.member(), a.member());
  EXPECT_EQ(of_a.round(), 1u);
  EXPECT_EQ(of_b.member(), b.member());
  EXPECT_EQ(of_b.round(), 2u);
  EXPECT_EQ(of_b.arrival_lag().counts_size(), 9);
  const v1::ServerStatus& server = status.server();
  EXPECT_EQ(BytesBy("tcp", "raw", server.received()), 3 * 16u);
  EXPECT_EQ(BytesBy("unix", "raw", server.received()), 0u);
  EXPECT_EQ(BytesBy("tcp", "raw", server.sent()), 2 * 16u);
  EXPECT_GE(server.memory_bytes(), 2 * 16u + 2 * 16u);
  EXPECT_LT(server.memory_bytes(), 1u << 20);
}

v1::WorkerSignal RegisterBarrier() {
  v1::WorkerSignal signal = RegisterModel();
  signal.mutable_register_group()->set_request(2);
  signal.mutable_register_group()->mutable_spec()->set_name("barrier/b");
  return signal;
}

TEST(ServerStatusTest, EachGroupWhoseRoundHasWaitedForASecondHasASentence) {
  FakeClock clock;
  Cluster cluster(1, Patient(), clock);
  Worker a(cluster.coordinator(), "a", 2), b(cluster.coordinator(), "b", 2);
  a.Begin();
  b.Begin();
  a.join().Write(RegisterBarrier());
  const uint32_t barrier = a.join().Await(v1::JobSignal::kRegistered).registered().plan().group();
  const auto to_a = a.Exchange(), to_b = b.Exchange();
  to_b->Write(b.Push(1, 1));
  v1::PushChunk arrives = a.Push(1, 1);
  arrives.set_group(barrier);
  to_a->Write(arrives);
  const auto job = [&] { return StatusOf(cluster.coordinator()).jobs(0); };
  ASSERT_TRUE(WaitUntil(
      [&] { return job().groups(0).open_chunks() == 1 && job().groups(1).open_chunks() == 1; }));
  clock.Advance(absl::Milliseconds(900));
  EXPECT_EQ(job().waits_size(), 0);
  clock.Advance(absl::Milliseconds(200));
  const v1::JobStatus waiting = job();
  ASSERT_EQ(waiting.waits_size(), 2);
  EXPECT_THAT(waiting.waits(0),
              ::testing::MatchesRegex("step 1 of group \"model\" has waited 1.1s for worker \"a\" "
                                      ".*"));
  EXPECT_THAT(waiting.waits(1),
              ::testing::MatchesRegex("step 1 of group \"barrier/b\" has waited 1.1s for worker "
                                      "\"b\" .*"));
  to_a->Write(a.Push(1, 1));
  to_a->MustRead();
  EXPECT_EQ(job().waits_size(), 1);
}

TEST(ServerStatusTest, AWorkerThatSentANaNIsKnownAfterItHasGone) {
  Cluster cluster(1, Patient());
  Worker a(cluster.coordinator(), "a", 2);
  auto b = std::make_unique<Worker>(cluster.coordinator(), "b", 2);
  a.Begin();
  b->Begin();
  {
    const auto to_a = a.Exchange(), to_b = b->Exchange();
    to_a->Write(a.Push(1, 1));
    to_b->Write(b->Push(1, std::numeric_limits<float>::quiet_NaN()));
    EXPECT_EQ(to_a->MustRead().payload(), FourOf(1));
    EXPECT_NE(to_b->MustRead().error().message(), "");
  }
  v1::WorkerSignal leave;
  leave.mutable_leave()->set_request(3);
  leave.mutable_leave()->add_last_rounds()->set_round(1);
  b->join().Write(leave);
  b->join().Await(v1::JobSignal::kDone);
  v1::JobStatus job;
  ASSERT_TRUE(WaitUntil([&] {
    const v1::GetStatusReply status = StatusOf(cluster.coordinator());
    if (status.jobs_size() == 1) job = status.jobs(0);
    return std::ranges::none_of(job.members(), [](const v1::MemberStatus& member) {
      return member.name() == "b" && !member.gone();
    });
  }));
  ASSERT_EQ(job.non_finite_size(), 1);
  EXPECT_EQ(job.non_finite(0).worker(), "b");
  EXPECT_EQ(job.non_finite(0).count(), 1u);
}

TEST(ServerStatusTest, AServerReportsItsHostItsLimitsAndItsConnections) {
  ServerOptions options = Patient();
  options.max_connections = 50;
  options.state = absl::StrCat(::testing::TempDir(), "/status-state-", getpid());
  Cluster cluster(1, options);
  // Each stub has a connection of its own, which is closed with it.
  const std::shared_ptr<grpc::Channel> kept =
      grpc::CreateCustomChannel(cluster.coordinator(), grpc::InsecureChannelCredentials(), [] {
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        return arguments;
      }());
  v1::GetStatusReply reply;
  ASSERT_TRUE(v1::Admin::NewStub(kept)->GetStatus(Context().get(), {}, &reply).ok());
  EXPECT_EQ(reply.server().connections(), 1u);
  const auto before = static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
  const v1::ServerStatus server = StatusOf(cluster.coordinator()).server();
  EXPECT_GE(server.date_ms(), before);
  EXPECT_EQ(server.max_connections(), 50u);
  EXPECT_GE(server.connections(), 1u);
  EXPECT_EQ(server.host_id(), HostId());
  EXPECT_EQ(server.version(), ThisBuild().version);
  EXPECT_EQ(server.commit(), ThisBuild().commit);
  EXPECT_EQ(server.grpc_version(), ThisBuild().grpc);
  EXPECT_EQ(server.user_id(), geteuid());
  EXPECT_TRUE(server.shares_memory());
  EXPECT_EQ(server.state_directory(), options.state);
  EXPECT_GT(server.state_free_bytes(), 0u);
  EXPECT_GT(server.memory_free_bytes(), 0u);
  EXPECT_GE(server.memory_total_bytes(), server.memory_free_bytes());
  EXPECT_GE(server.state_total_bytes(), server.state_free_bytes());
  EXPECT_GT(server.state_bytes(), 0u);
  EXPECT_EQ(server.recovered_jobs(), 0u);
  EXPECT_EQ(server.recovery_ms(), 0u);
  EXPECT_TRUE(server.coordinator_reached());
  std::filesystem::remove_all(options.state);
}

TEST(ServerStatusTest, AFollowerReportsWhetherItReachesItsCoordinator) {
  auto cluster = std::make_unique<Cluster>(1, Patient());
  ServerOptions options = Patient();
  options.bind = "127.0.0.1";
  options.index = 1;
  options.coordinator = cluster->coordinator();
  testing::RecordingJournal journal;
  // The coordinator has one server only, and refuses this one.
  auto started = Server::Start(options, journal);
  ASSERT_TRUE(started.ok());
  const std::string address = absl::StrCat("127.0.0.1:", (*started)->port());
  EXPECT_EQ(StatusOf(address).server().coordinator(), cluster->coordinator());
  EXPECT_TRUE(WaitUntil([&] { return !(*started)->status().ok(); }));
  EXPECT_FALSE(StatusOf(address).server().coordinator_reached());

  Cluster two(2, Patient());
  ASSERT_TRUE(
      WaitUntil([&] { return StatusOf(two.coordinator()).server().servers(1).connected(); }));
  const v1::ServerStatus first = StatusOf(two.coordinator()).server();
  ASSERT_EQ(first.servers_size(), 2);
  EXPECT_EQ(first.servers(1).address(), absl::StrCat("127.0.0.1:", two.server(1).port()));
  EXPECT_TRUE(WaitUntil(
      [&] { return StatusOf(first.servers(1).address()).server().coordinator_reached(); }));
}

TEST(ServerStatusTest, TheCoordinatorShowsTheLoadOfAllServers) {
  Cluster cluster(2, Patient());
  v1::ServerStatus status;
  ASSERT_TRUE(WaitUntil([&] {
    status = StatusOf(cluster.coordinator()).server();
    return status.servers_size() == 2 && status.servers(1).has_load();
  }));
  EXPECT_EQ(status.servers(0).load().memory_free_bytes(), status.memory_free_bytes());
  EXPECT_EQ(status.servers(0).load().connections(), status.connections());
  EXPECT_GT(status.servers(1).load().memory_free_bytes(), 0u);
  const uint64_t uptime = status.servers(1).load().uptime_ms();
  EXPECT_TRUE(WaitUntil([&] {
    return StatusOf(cluster.coordinator()).server().servers(1).load().uptime_ms() > uptime;
  })) << "it is reported again and again";
}

TEST(ServerStatusTest, DrainRefusesNewJobsAndNeedsTheServersToken) {
  Cluster cluster(2, Patient());
  const auto drain = [](const std::string& address, const std::string& token) {
    v1::DrainRequest request;
    v1::DrainReply reply;
    request.set_server_token(token);
    return v1::Admin::NewStub(ChannelTo(address))->Drain(Context().get(), request, &reply);
  };
  ExpectStatus(drain(cluster.coordinator(), "guessed"), grpc::StatusCode::PERMISSION_DENIED,
               {"token"});
  ExpectStatus(drain(absl::StrCat("127.0.0.1:", cluster.server(1).port()), "of servers"),
               grpc::StatusCode::FAILED_PRECONDITION, {"not the coordinator"});
  EXPECT_FALSE(StatusOf(cluster.coordinator()).server().draining());
  EXPECT_TRUE(drain(cluster.coordinator(), "of servers").ok());
  EXPECT_TRUE(StatusOf(cluster.coordinator()).server().draining());
  JoinStream join(cluster.coordinator());
  join.Write(HelloOf("a", 1));
  ExpectStatus(join.Finish(), grpc::StatusCode::UNAVAILABLE, {"draining"});
}

}  // namespace
}  // namespace syncgrads::server
