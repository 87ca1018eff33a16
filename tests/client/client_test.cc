// Joining and leaving, and the errors of a client that is not a member.

#include "client/client.h"

#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ClientOptions Options(Cluster& cluster, const std::string& name, uint32_t world_size) {
  ClientOptions options;
  options.coordinator = cluster.coordinator();
  options.job = "job";
  options.token = "secret";
  options.name = name;
  options.world_size = world_size;
  return options;
}

GroupSpec Spec() {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {1}}};
  return spec;
}

void ExpectsJoin(const absl::Status& status) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("call Client::Join first"));
}

TEST(ClientTest, SaysToJoinFirst) {
  Client client({.coordinator = "127.0.0.1:1", .job = "job"});
  std::vector<float> v = {1};
  const auto add = [](void*, const void*) {};
  ExpectsJoin(client.Register(Spec(), kTimeout).status());
  ExpectsJoin(client.AllReduce("v", In(v), Out(v), Reduction::kSum, kTimeout).status());
  ExpectsJoin(client.AllReduceAsync("v", In(v), Out(v), Reduction::kSum).status());
  ExpectsJoin(client.AllReduceSkip("v", Out(v), Reduction::kSum, kTimeout).status());
  ExpectsJoin(client.AllReduceSkipAsync("v", Out(v), Reduction::kSum).status());
  ExpectsJoin(client.AllReduceWith("v", In(v), Out(v), add, kTimeout).status());
  ExpectsJoin(client.Reduce("v", In(v), Out(v), Reduction::kSum, 0, kTimeout).status());
  ExpectsJoin(client.ReduceAsync("v", In(v), Out(v), Reduction::kSum, 0).status());
  ExpectsJoin(client.Broadcast("v", Out(v), 0, kTimeout));
  ExpectsJoin(client.BroadcastAsync("v", Out(v), 0).status());
  ExpectsJoin(client.BroadcastAll("v", {}, 0, kTimeout));
  ExpectsJoin(client.AllGather("v", In(v), Out(v), kTimeout).status());
  ExpectsJoin(client.AllGatherAsync("v", In(v), Out(v)).status());
  ExpectsJoin(client.Barrier("v", kTimeout));
  ExpectsJoin(client.BarrierAsync("v").status());
  std::ostringstream stream;
  ExpectsJoin(client.PrintInOrder(stream, "text", kTimeout));
  ExpectsJoin(client.Leave(kTimeout));
  EXPECT_EQ(stream.str(), "");
  EXPECT_EQ(client.world_size(), 0u);
  client.Abandon();
  EXPECT_FALSE(client.Join(kTimeout).ok());
}

TEST(ClientTest, JoinsOnce) {
  Cluster cluster;
  Client client(Options(cluster, "", 1));
  ASSERT_OK(client.Join(kTimeout));
  EXPECT_EQ(client.rank(), 0u);
  EXPECT_EQ(client.world_size(), 1u);
  EXPECT_TRUE(client.is_master());
  EXPECT_EQ(client.local_rank(), 0u);
  EXPECT_NE(client.name(), "");
  EXPECT_OK(client.status());
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Join(kTimeout)));
  ASSERT_OK(client.Leave(kTimeout));
  const absl::Status left = client.Barrier("b", kTimeout);
  EXPECT_TRUE(absl::IsFailedPrecondition(left)) << left;
  EXPECT_THAT(std::string(left.message()), HasSubstr("left"));
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Join(kTimeout)));
}

TEST(ClientTest, HasTheLocalRankOfItsOptionsOrElseItsRank) {
  Cluster cluster;
  ClientOptions options = Options(cluster, "bob", 2);
  options.local_rank = 5;
  Client first(Options(cluster, "carol", 2)), second(options);
  EXPECT_TRUE(absl::IsDeadlineExceeded(first.Join(absl::ZeroDuration())));
  ASSERT_OK(second.Join(kTimeout));
  ASSERT_OK(first.Join(kTimeout));
  EXPECT_EQ(first.rank(), 1u);
  EXPECT_EQ(first.world_size(), 2u);
  EXPECT_FALSE(first.is_master());
  EXPECT_TRUE(second.is_master());
  EXPECT_EQ(first.local_rank(), 1u);
  EXPECT_EQ(second.local_rank(), 5u);
}

TEST(ClientTest, SaysThatTheCoordinatorIsOutOfReach) {
  Client client({.coordinator = "127.0.0.1:1", .job = "job"});
  const absl::Status status = client.Join(absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST(ClientTest, NeedsTheAddressOfTheCoordinator) {
  for (const std::string address : {"", "host", "host:port"}) {
    Client client({.coordinator = address, .job = "job"});
    const absl::Status status = client.Join(absl::InfiniteDuration());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("coordinator"), HasSubstr(absl::StrCat("\"", address, "\""))));
  }
}

TEST(ClientTest, SaysWhomTheJobWaitsForAndCanBeAskedAgain) {
  Cluster cluster;
  Client first(Options(cluster, "ada", 2));
  EXPECT_THAT(AwaitReason({"1 of 2"}, [&] { return first.Join(absl::Milliseconds(300)); }),
              HasSubstr("1 of 2"));
  ExpectsJoin(first.Barrier("b", kTimeout));
  Client second(Options(cluster, "bob", 2));
  ASSERT_OK(second.Join(kTimeout));
  ASSERT_OK(first.Join(kTimeout));
  EXPECT_EQ(first.rank(), 0u);  // ranks follow the order of the names
  EXPECT_EQ(second.rank(), 1u);
}

TEST(ClientTest, IsRefusedByType) {
  Cluster cluster;
  Client first(Options(cluster, "ada", 2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(first.Join(absl::Milliseconds(200))));
  // The coordinator may admit this worker only after the deadline of Join.
  ASSERT_NE(cluster.journal().WaitForLine({"worker \"ada\"", "joins as member"}, kTimeout), "");
  Client same(Options(cluster, "ada", 2));
  const absl::Status exists = same.Join(kTimeout);
  EXPECT_TRUE(absl::IsAlreadyExists(exists)) << exists;
  EXPECT_THAT(std::string(exists.message()), HasSubstr("ada"));
  ClientOptions options = Options(cluster, "bob", 2);
  options.token = "guess";
  Client stranger(options);
  EXPECT_TRUE(absl::IsPermissionDenied(stranger.Join(kTimeout)));
  Client other_size(Options(cluster, "bob", 3));
  const absl::Status size = other_size.Join(kTimeout);
  EXPECT_TRUE(absl::IsFailedPrecondition(size)) << size;
  Client second(Options(cluster, "bob", 2));
  EXPECT_OK(second.Join(kTimeout));
  EXPECT_OK(first.Join(kTimeout));
  Client third(Options(cluster, "eve", 2));
  EXPECT_FALSE(third.Join(kTimeout).ok());
}

TEST(ClientTest, GivesItsBuffersBackWhenItIsAbandoned) {
  Cluster cluster;
  Workers workers(cluster, 2);
  std::vector<float> v(3 << 20, 1.0f);
  auto pending = workers[0].AllReduceAsync("v", In(v), Out(v), Reduction::kSum);
  ASSERT_OK(pending);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pending->Wait(absl::Milliseconds(50)).status()));
  workers[0].Abandon();
  v.assign(v.size(), 2.0f);
  const absl::Status status = pending->Wait(kTimeout).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(v[0], 2.0f);
  EXPECT_FALSE(workers[0].Barrier("b", kTimeout).ok());
}

TEST(ClientTest, SaysSoWhenTheServersGoAway) {
  float value = 1;  // outlives the clients, to which it belongs because the step does not end
  auto cluster = std::make_unique<Cluster>(2);
  Workers workers(*cluster, 2);
  const auto group = workers[0].Register(Spec(), kTimeout);
  ASSERT_OK(group);
  ASSERT_OK((*group)->Push(TensorId{0}, &value, 4, &value));
  cluster = nullptr;
  const absl::Status status = (*group)->WaitStep(absl::Seconds(5)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(workers[0].Barrier("b", absl::Milliseconds(200)).ok());
}

}  // namespace
}  // namespace syncgrads::testing
