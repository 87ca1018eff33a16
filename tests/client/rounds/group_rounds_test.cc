// Many threads use one group; meant for the thread sanitizer. The behaviour of rounds is tested in
// data_plane_test and data_plane_retry_test.

#include "client/rounds/group_rounds.h"

#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

// Answers every push with the values that were pushed, on its own thread.
class Echo : public Outbox {
 public:
  Echo() : thread_([this] { Run(); }) {}
  ~Echo() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  void Send(ServerIndex, const ChunkKey&, uint64_t,
            std::shared_ptr<const OutgoingMessage> message) override {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.NotifyAll();
  }
  void Forget(ServerIndex, const ChunkKey&) override {}

  std::shared_ptr<GroupRounds> rounds;

 private:
  void Run() {
    while (true) {
      std::shared_ptr<const OutgoingMessage> message;
      {
        MutexLock lock(mutex_);
        while (messages_.empty() && !stopping_) {
          changed_.WaitUntil(mutex_, absl::InfiniteFuture());
        }
        if (messages_.empty()) return;
        message = std::move(messages_.front());
        messages_.pop_front();
      }
      auto bytes = std::make_shared<const std::string>(BytesOf(*message));
      const absl::Span<const std::byte> whole = SpanOf(*bytes);
      const PushFrame push = *DecodePush(absl::MakeConstSpan(&whole, 1));
      UpdateFrame update;
      update.header.generation = push.header.generation;
      update.header.group = push.header.group;
      update.header.chunk = push.header.chunk;
      update.header.round = push.header.round;
      const Chunk& chunk = rounds->plan().layout.chunk(push.header.chunk);
      update.header.counts.assign(chunk.spans.size(), 1);
      update.payload = push.payload;
      EXPECT_TRUE(rounds->OnUpdate(update, bytes).ok());
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<const OutgoingMessage>> messages_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

TEST(GroupRoundsTest, TakesPushesAndWaitsOfManyThreads) {
  constexpr uint32_t kTensors = 24;
  GroupSpec spec;
  spec.name = "model";
  for (uint32_t t = 0; t < kTensors; ++t) {
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {1 + 37 * t}});
  }
  Layout layout = *Layout::Create(spec.tensors, 1024, spec.compression);
  std::vector<ServerIndex> servers(layout.chunks().size());
  std::atomic<uint64_t> epoch{1};
  Echo echo;
  echo.rounds = std::make_shared<GroupRounds>(
      std::make_shared<const GroupPlan>(
          GroupPlan{GroupId{1}, std::move(spec), std::move(layout), std::move(servers)}),
      Identity{Generation{1}, MemberId{1}, Incarnation{1}}, epoch, echo);
  GroupRounds& rounds = *echo.rounds;
  std::vector<std::vector<float>> values;
  for (uint32_t t = 0; t < kTensors; ++t) values.emplace_back(1 + 37 * t);
  for (int round = 1; round <= 20; ++round) {
    std::vector<std::thread> threads;
    for (uint32_t worker = 0; worker < 4; ++worker) {
      threads.emplace_back([&, worker] {
        for (uint32_t t = worker; t < kTensors; t += 4) {
          values[t].assign(values[t].size(), 100.0f * round + t);
          auto* bytes = reinterpret_cast<std::byte*>(values[t].data());
          const size_t size = values[t].size() * sizeof(float);
          ASSERT_TRUE(
              rounds
                  .Push(TensorId{t}, absl::MakeConstSpan(bytes, size), absl::MakeSpan(bytes, size))
                  .ok());
        }
        for (uint32_t t = worker; t < kTensors; t += 4) {
          ASSERT_TRUE(rounds.Await(rounds.ChunksOf(TensorId{t}), absl::InfiniteFuture()));
          ASSERT_EQ(values[t], std::vector<float>(values[t].size(), 100.0f * round + t));
          ASSERT_EQ(rounds.CountContributors(TensorId{t}).least, 1u);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(rounds.EndRound().ok());
  }
  rounds.Fail(absl::CancelledError("over"));
  EXPECT_TRUE(rounds.AwaitReleased(absl::InfiniteFuture()));
}

}  // namespace
}  // namespace syncgrads::client
