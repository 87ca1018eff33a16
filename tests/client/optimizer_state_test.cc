// The state of an optimizer on the servers: reading it, and restoring it in another job.

#include "client/rounds/optimizer_state.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "proto/admin.grpc.pb.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tensors and chunks have different boundaries, and the chunks are on all servers.
GroupSpec Spec(uint32_t chunk_bytes) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {40}}, {"b", DType::kF32, {3, 5}}, {"c", DType::kF32, {}}};
  spec.rule = Adam{};
  spec.chunk_bytes = chunk_bytes;
  return spec;
}

using Tensors = std::vector<std::vector<float>>;

Tensors Filled(float value) {
  return {std::vector<float>(40, value), std::vector<float>(15, value), {value}};
}

std::vector<void*> PointersTo(Tensors& tensors) {
  std::vector<void*> pointers;
  for (std::vector<float>& tensor : tensors) pointers.push_back(tensor.data());
  return pointers;
}

// Runs `steps` steps. In every second step "b" has no gradient.
void Train(Group& group, uint32_t rank, int steps, Tensors& parameters) {
  for (int step = 0; step < steps; ++step) {
    Tensors gradients = Filled(0);
    for (std::vector<float>& gradient : gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = 0.1f * static_cast<float>(i + rank) - 0.3f * static_cast<float>(step);
      }
    }
    for (uint32_t t = 0; t < gradients.size(); ++t) {
      if (t == 1 && step % 2 == 1) {
        ASSERT_OK(group.Skip(TensorId{t}, parameters[t].data()));
      } else {
        ASSERT_OK(group.Push(TensorId{t}, gradients[t].data(), BytesOf(gradients[t]),
                             parameters[t].data()));
      }
    }
    ASSERT_OK(group.WaitStep(kTimeout));
  }
}

void SkipStep(Group& group, Tensors& parameters) {
  ASSERT_OK(group.SkipAll(PointersTo(parameters)));
  ASSERT_OK(group.WaitStep(kTimeout));
}

void ExpectSame(const OptimizerState& a, const OptimizerState& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t t = 0; t < a.tensors.size(); ++t) {
    EXPECT_EQ(a.tensors[t].updates, b.tensors[t].updates) << t;
    EXPECT_TRUE(a.tensors[t].slots == b.tensors[t].slots) << t;
  }
}

// The result of TrainFresh. It runs five steps, takes a snapshot of the optimizer, runs three more
// steps, and then reads the snapshot into `state`.
struct Trained {
  Tensors parameters = Filled(1);  // after the fifth step
  Tensors last = Filled(1);
  OptimizerState state;
};

Trained TrainFresh(uint32_t servers, uint32_t workers, uint32_t chunk_bytes) {
  Cluster cluster(servers);
  Workers all(cluster, workers);
  Trained run;
  all.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(chunk_bytes), kTimeout);
    ASSERT_OK(group);
    Tensors parameters = Filled(1);
    ASSERT_OK((*group)->Broadcast(0, PointersTo(parameters), kTimeout));
    Train(**group, rank, 5, parameters);
    std::unique_ptr<OptimizerSnapshot> held;
    if (rank == 0) {
      run.parameters = parameters;
      auto answered = (*group)->SnapshotOptimizer(kTimeout);
      ASSERT_OK(answered);
      held = *std::move(answered);
    }
    Train(**group, rank, 3, parameters);
    if (rank != 0) return;
    run.last = parameters;
    const auto state = held->Read();
    ASSERT_OK(state);
    run.state = *state;
  });
  return run;
}

TEST(OptimizerStateTest, WhatIsHeldStaysAsItWasWhileTrainingGoesOn) {
  const Trained run = TrainFresh(2, 3, 64);
  ASSERT_EQ(run.state.tensors.size(), 3u);
  EXPECT_EQ(run.state.tensors[0].updates, 5u);
  EXPECT_EQ(run.state.tensors[1].updates, 3u);
  EXPECT_EQ(run.state.tensors[0].slots.size(), 2u);
  // One server and another chunk size give the same parameters and state.
  const Trained again = TrainFresh(1, 3, 4096);
  EXPECT_EQ(again.parameters, run.parameters);
  ExpectSame(again.state, run.state);
}

TEST(OptimizerStateTest, ItIsRestoredOntoOtherServersAndWorkersBitForBit) {
  const Trained run = TrainFresh(2, 3, 64);
  Cluster cluster(3);
  Workers two(cluster, 2);
  two.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(44), kTimeout);
    ASSERT_OK(group);
    Tensors parameters = rank == 1 ? run.parameters : Filled(9);
    const OptimizerState nothing;
    ASSERT_OK(
        (*group)->Restore(1, PointersTo(parameters), rank == 1 ? run.state : nothing, kTimeout));
    EXPECT_EQ(parameters, run.parameters);
    SkipStep(**group, parameters);
    EXPECT_EQ(parameters, run.parameters);
    if (rank != 0) return;
    const auto held = (*group)->SnapshotOptimizer(kTimeout);
    ASSERT_OK(held);
    const auto state = (*held)->Read();
    ASSERT_OK(state);
    ExpectSame(*state, run.state);
  });
}

TEST(OptimizerStateTest, RestoredWithAsManyWorkersTrainingGoesOnBitForBit) {
  const Trained run = TrainFresh(2, 3, 64);
  // Train counts its steps from 0 in each call. So the last three steps are the same with and
  // without the restored state.
  Tensors whole, parts;
  for (const bool restored : {false, true}) {
    Cluster cluster(2);
    Workers workers(cluster, 3);
    workers.Run([&](uint32_t rank, Client& client) {
      const auto group = client.Register(Spec(64), kTimeout);
      ASSERT_OK(group);
      Tensors parameters = restored ? run.parameters : Filled(1);
      if (restored) {
        ASSERT_OK((*group)->Restore(0, PointersTo(parameters), run.state, kTimeout));
      } else {
        ASSERT_OK((*group)->Broadcast(0, PointersTo(parameters), kTimeout));
        Train(**group, rank, 5, parameters);
      }
      Train(**group, rank, 3, parameters);
      if (rank == 0) (restored ? parts : whole) = parameters;
    });
  }
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(whole, run.last);
}

TEST(OptimizerStateTest, AStateThatDoesNotFitIsNamed) {
  Cluster cluster(1);
  Workers one(cluster, 1);
  const auto group = one[0].Register(Spec(0), kTimeout);
  ASSERT_OK(group);
  Tensors parameters = Filled(1);
  OptimizerState state;
  const auto expect = [&](const std::string& text) {
    const absl::Status status = (*group)->Restore(0, PointersTo(parameters), state, kTimeout);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status;
  };
  expect("0 tensors, but is for group \"model\", which has 3");
  state.tensors.resize(3);
  expect("tensor \"a\" has 0 slots, but its optimizer needs 2");
  for (auto& tensor : state.tensors) tensor.slots.assign(2, std::vector<std::byte>(60));
  expect("a slot of tensor \"a\" has 60 bytes, but the tensor has 160");
}

TEST(OptimizerStateTest, WhatIsNotThereIsSaid) {
  Cluster cluster(1);
  Workers one(cluster, 1);
  GroupSpec average = Spec(0);
  average.rule = Reduction::kAverage;
  average.name = "average";
  const auto without = one[0].Register(average, kTimeout);
  ASSERT_OK(without);
  EXPECT_EQ((*without)->SnapshotOptimizer(kTimeout).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto group = one[0].Register(Spec(0), kTimeout);
  ASSERT_OK(group);
  EXPECT_EQ((*group)->SnapshotOptimizer(kTimeout).status().code(),
            absl::StatusCode::kFailedPrecondition);

  // Any program can make this call, so the server has to check it.
  const auto stub = v1::Admin::NewStub(
      grpc::CreateChannel(cluster.coordinator(), grpc::InsecureChannelCredentials()));
  const auto ask = [&](const std::string& job, const std::string& token, uint64_t round) {
    grpc::ClientContext context;
    v1::ReadOptimizerRequest request;
    request.set_job(job);
    request.set_token(token);
    request.set_round(round);
    v1::OptimizerChunk chunk;
    const auto stream = stub->ReadOptimizer(&context, request);
    EXPECT_FALSE(stream->Read(&chunk));
    return stream->Finish().error_code();
  };
  EXPECT_EQ(ask("none", "", 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ask("job", "wrong", 1), grpc::StatusCode::PERMISSION_DENIED);
  // In this case the generation does not match.
  EXPECT_EQ(ask("job", "", 1), grpc::StatusCode::FAILED_PRECONDITION);
}

// A reader of two chunks of 64 bytes. It adds `self` to `order` with each chunk.
class TwoChunks : public client::OptimizerReader {
 public:
  TwoChunks(int self, std::vector<int>& order) : self_(self), order_(order) {}

  absl::StatusOr<uint32_t> AwaitHeld() override { return 2; }
  absl::StatusOr<client::OptimizerChunk> Next() override {
    if (read_ == 2) return absl::OutOfRangeError("there are no more chunks");
    order_.push_back(self_);
    const ChunkId chunk{static_cast<uint32_t>(2 * self_ + read_++)};
    return client::OptimizerChunk{chunk, {5}, {std::string(64, '1'), std::string(64, '2')}};
  }

 private:
  const int self_;
  std::vector<int>& order_;
  int read_ = 0;
};

TEST(OptimizerStateTest, NoServerWaitsUntilTheStatesOfTheOthersHaveBeenRead) {
  GroupSpec spec{"model", {{"a", DType::kF32, {64}}}, Adam{}, 64};
  Layout layout = *Layout::Create(spec.tensors, 64, spec.compression);
  ASSERT_EQ(layout.chunks().size(), 4u);
  std::vector<int> order;
  std::vector<std::unique_ptr<client::OptimizerReader>> readers;
  for (int server : {0, 1}) readers.push_back(std::make_unique<TwoChunks>(server, order));
  const auto held =
      client::Hold(std::make_shared<const GroupPlan>(
                       GroupPlan{GroupId{1},
                                 std::move(spec),
                                 std::move(layout),
                                 {ServerIndex{0}, ServerIndex{0}, ServerIndex{1}, ServerIndex{1}}}),
                   std::move(readers));
  ASSERT_OK(held);
  const auto state = (*held)->Read();
  ASSERT_OK(state);
  EXPECT_EQ(state->tensors.at(0).slots.at(1), std::vector<std::byte>(256, std::byte{'2'}));
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1));
}

// A clock that the test advances.
class AdvancedClock : public Clock {
 public:
  absl::Time Now() const override { return start_ + absl::Seconds(seconds_.load()); }
  void AdvanceASecond() { ++seconds_; }

 private:
  const absl::Time start_ = MonotonicNow();
  std::atomic<int64_t> seconds_{0};
};

// A call that reads the optimizer's state of the first group of a job, which has made one step. It
// reads the first message only.
class Unread {
 public:
  Unread(v1::Admin::Stub& stub, const std::string& job) {
    grpc::ClientContext status_context;
    v1::GetStatusReply status;
    EXPECT_TRUE(stub.GetStatus(&status_context, {}, &status).ok());
    v1::ReadOptimizerRequest request;
    request.set_job(job);
    for (const v1::JobStatus& one : status.jobs()) {
      if (one.job() == job) request.set_generation(one.generation());
    }
    request.set_round(1);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + 2 * kTimeout));
    reader_ = stub.ReadOptimizer(&context_, request);
    is_held_ = reader_->Read(&message_);
  }
  ~Unread() {
    context_.TryCancel();
    if (!ended_) End();
  }

  // Whether the server holds the state.
  bool is_held() const { return is_held_; }
  // Reads the rest.
  grpc::Status End() {
    ended_ = true;
    while (reader_->Read(&message_)) continue;
    return reader_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OptimizerChunk>> reader_;
  v1::OptimizerChunk message_;
  bool is_held_ = false;
  bool ended_ = false;
};

TEST(OptimizerStateTest, ThoseWhoDoNotReadAreFewAndAreCut) {
  AdvancedClock clock;
  server::ServerOptions options;
  // The test advances the clock by far more than heartbeats arrive.
  options.lease = options.stream_grace = absl::Hours(24);
  Cluster cluster(1, options, clock);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  std::vector<std::unique_ptr<Workers>> jobs;
  for (const std::string& name : names) {
    jobs.push_back(std::make_unique<Workers>(cluster, 1, name));
    // Each message has 512 KiB, and a caller that does not read takes 64 KiB.
    const auto group = (*jobs.back())[0].Register(
        {"model", {{"w", DType::kF32, {1 << 18}}}, Adam{}, 256 << 10}, kTimeout);
    ASSERT_OK(group);
    Tensors tensors = {std::vector<float>(1 << 18, 1)};
    ASSERT_OK((*group)->Broadcast(0, PointersTo(tensors), kTimeout));
    ASSERT_OK(
        (*group)->Push(TensorId{0}, tensors[0].data(), BytesOf(tensors[0]), tensors[0].data()));
    ASSERT_OK((*group)->WaitStep(kTimeout));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Admin::NewStub(grpc::CreateCustomChannel(
      cluster.coordinator(), grpc::InsecureChannelCredentials(), arguments));

  std::vector<std::unique_ptr<Unread>> calls;
  for (size_t job = 0; job < 4; ++job) {
    for (int i = 0; i < 2; ++i) {
      calls.push_back(std::make_unique<Unread>(*stub, names[job]));
      ASSERT_TRUE(calls.back()->is_held());
    }
    if (job > 0) continue;
    const grpc::Status third = Unread(*stub, names[job]).End();
    EXPECT_EQ(third.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(third.error_message(), HasSubstr("job \"a\" to 2 callers, of at most 2"));
  }
  const grpc::Status ninth = Unread(*stub, names[4]).End();
  EXPECT_EQ(ninth.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // All callers of the test are of one network, which has half of the places of the server.
  EXPECT_THAT(ninth.error_message(), HasSubstr("to 8 callers of 127.0.0.1, of at most 8"));

  EXPECT_TRUE(WaitUntil([&] {
    clock.AdvanceASecond();
    return Unread(*stub, names[4]).is_held();
  }));
  // A call whose message was written later than the others' may go on.
  int cut = 0;
  for (const auto& call : calls) {
    const grpc::Status end = call->End();
    if (end.ok()) continue;
    ++cut;
    EXPECT_EQ(end.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_THAT(end.error_message(), HasSubstr("not read within 10s"));
  }
  EXPECT_GT(cut, 0);
}

TEST(OptimizerStateTest, ACheckpointThatIsAskedForReachesTheWorkersAndIsCounted) {
  Cluster cluster(2);
  Workers two(cluster, 2);
  const auto stub = v1::Admin::NewStub(
      grpc::CreateChannel(cluster.coordinator(), grpc::InsecureChannelCredentials()));
  v1::CheckpointRequest request;
  v1::CheckpointReply reply;
  const auto ask = [&](const std::string& job, const std::string& token) {
    grpc::ClientContext context;
    request.set_job(job);
    request.set_token(token);
    return stub->Checkpoint(&context, request, &reply).error_code();
  };
  EXPECT_EQ(ask("none", ""), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ask("job", "wrong"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ask("job", ""), grpc::StatusCode::OK);
  EXPECT_EQ(reply.workers(), 2u);
  const absl::Time deadline = absl::Now() + kTimeout;
  for (uint32_t rank : {0, 1}) {
    while (!two[rank].TakeCheckpointRequest()) ASSERT_LT(absl::Now(), deadline);
    EXPECT_FALSE(two[rank].TakeCheckpointRequest());
  }
  two[0].ReportCheckpoint(7, std::string("run/step-7"));
  two[0].ReportCheckpoint(8, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_NE(cluster.journal().WaitForLine({"step 8", "the disk is full"}, kTimeout), "");
  grpc::ClientContext context;
  v1::GetStatusReply status;
  ASSERT_TRUE(stub->GetStatus(&context, {}, &status).ok());
  const v1::CheckpointStatus& checkpoints = status.jobs(0).checkpoints();
  EXPECT_EQ(checkpoints.written(), 1u);
  EXPECT_EQ(checkpoints.failed(), 1u);
  EXPECT_EQ(checkpoints.last_step(), 7u);
  EXPECT_EQ(checkpoints.last_path(), "run/step-7");
  EXPECT_EQ(checkpoints.last_error(), "the disk is full");
}

}  // namespace
}  // namespace syncgrads::testing
