// Many threads use one group; meant for the thread sanitizer. Most of the behaviour of rounds is
// tested in data_plane_test and data_plane_retry_test.

#include "client/rounds/group_rounds.h"

#include <deque>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

std::shared_ptr<GroupRounds> NewRounds(GroupSpec spec, uint32_t chunk_bytes,
                                       const std::atomic<uint64_t>& epoch, Outbox& outbox) {
  Layout layout = *Layout::Create(spec.tensors, chunk_bytes, spec.compression);
  std::vector<ServerIndex> servers(layout.chunks().size());
  return std::make_shared<GroupRounds>(
      std::make_shared<const GroupPlan>(
          GroupPlan{GroupId{1}, std::move(spec), std::move(layout), std::move(servers)}),
      Identity{Generation{1}, MemberId{1}, Incarnation{1}}, epoch, outbox);
}

// Answers a push with the values that were pushed. The message is still in use.
void Answer(const OutgoingMessage& message, GroupRounds& rounds) {
  auto bytes = std::make_shared<const std::string>(BytesOf(message));
  const absl::Span<const std::byte> whole = SpanOf(*bytes);
  const PushFrame push = *DecodePush(absl::MakeConstSpan(&whole, 1));
  UpdateFrame update;
  update.header.generation = push.header.generation;
  update.header.group = push.header.group;
  update.header.chunk = push.header.chunk;
  update.header.round = push.header.round;
  const Chunk& chunk = rounds.plan().layout.chunk(push.header.chunk);
  update.header.counts.assign(chunk.spans.size(), 1);
  update.header.contributors = {0};
  update.payload = push.payload;
  EXPECT_TRUE(rounds.OnUpdate(update, bytes).ok());
}

// Answers every push on its own thread.
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
      Answer(*message, *rounds);
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
  std::atomic<uint64_t> epoch{1};
  Echo echo;
  echo.rounds = NewRounds(std::move(spec), 1024, epoch, echo);
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

// Keeps messages until they are answered, by the thread that waits for the answers.
class AnsweredInWaits : public Outbox, public Waits {
 public:
  AnsweredInWaits() { of_this_thread = this; }
  ~AnsweredInWaits() override { of_this_thread = nullptr; }

  void Send(ServerIndex, const ChunkKey&, uint64_t,
            std::shared_ptr<const OutgoingMessage> message) override {
    messages_.push_back(std::move(message));
  }
  void Forget(ServerIndex, const ChunkKey&) override {}

  // Answers messages until `condition` is notified. Without analysis, because the caller's mutex is
  // released here.
  bool WaitUntil(const CondVar& condition, Mutex& mutex,
                 absl::Time) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ++waits;
    mutex.Unlock();
    progress = rounds->Progress();
    for (notified_.clear(); !notified_.contains(&condition) && !messages_.empty();) {
      Answer(*messages_.front(), *rounds);
      messages_.pop_front();
    }
    mutex.Lock();
    return true;
  }
  void NotifyAll(const CondVar& condition) override { notified_.insert(&condition); }

  std::shared_ptr<GroupRounds> rounds;
  int waits = 0;
  std::optional<Round> progress;  // in the last wait

 private:
  std::deque<std::shared_ptr<const OutgoingMessage>> messages_;
  std::set<const CondVar*> notified_;
};

// A group of two tensors of four chunks each.
class AnsweredRoundsTest : public ::testing::Test {
 protected:
  AnsweredRoundsTest() {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"v", DType::kF32, {16}}, {"w", DType::kF32, {16}}};
    outbox_.rounds = NewRounds(std::move(spec), /*chunk_bytes=*/16, epoch_, outbox_);
  }

  GroupRounds& rounds() { return *outbox_.rounds; }
  void Push(uint32_t tensor) {
    const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(values_.data()),
                                      values_.size() * sizeof(float));
    ASSERT_TRUE(rounds().Push(TensorId{tensor}, bytes, bytes).ok());
  }

  std::atomic<uint64_t> epoch_{1};
  std::vector<float> values_ = std::vector<float>(16);
  AnsweredInWaits outbox_;
};

TEST_F(AnsweredRoundsTest, AWaitForManyChunksIsWokenOnce) {
  ASSERT_EQ(rounds().AllChunks().count, 8u);
  for (uint32_t t = 0; t < 2; ++t) Push(t);
  EXPECT_TRUE(rounds().Await(rounds().ChunksOf(TensorId{0}), absl::InfiniteFuture()));
  EXPECT_EQ(outbox_.waits, 1);
  EXPECT_FALSE(rounds().IsOver(rounds().AllChunks()));
  EXPECT_TRUE(rounds().Await(rounds().AllChunks(), absl::InfiniteFuture()));
  EXPECT_EQ(outbox_.waits, 2);
}

// Others wait for a member that is in the middle of its step, unless it waits for them.
TEST_F(AnsweredRoundsTest, ProgressCountsAPartOfAStepOnlyWhileItsResultsAreAwaited) {
  EXPECT_EQ(rounds().Progress(), Round{0});
  Push(0);
  EXPECT_EQ(rounds().Progress(), Round{0});
  Push(1);
  EXPECT_EQ(rounds().Progress(), Round{1});
  ASSERT_TRUE(rounds().Await(rounds().AllChunks(), absl::InfiniteFuture()));
  ASSERT_TRUE(rounds().EndRound().ok());
  Push(0);
  EXPECT_EQ(rounds().Progress(), Round{1});
  ASSERT_TRUE(rounds().Await(rounds().ChunksOf(TensorId{0}), absl::InfiniteFuture()));
  EXPECT_EQ(outbox_.progress, Round{2});
  EXPECT_EQ(rounds().Progress(), Round{1});
  Push(1);
  EXPECT_EQ(rounds().Progress(), Round{2});
  ASSERT_TRUE(rounds().Await(rounds().AllChunks(), absl::InfiniteFuture()));
  ASSERT_TRUE(rounds().EndRound().ok());
  Push(0);
  ASSERT_EQ(*rounds().AwaitNext(absl::InfiniteFuture()), TensorId{0});
  EXPECT_EQ(outbox_.progress, Round{3});
  EXPECT_EQ(rounds().Progress(), Round{2});
  rounds().Fail(absl::CancelledError("over"));
}

TEST(GroupRoundsTest, AFailureWakesAWait) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {16}}};
  std::atomic<uint64_t> epoch{1};
  Echo echo;
  echo.rounds = NewRounds(std::move(spec), /*chunk_bytes=*/16, epoch, echo);
  std::thread waiting(
      [&] { EXPECT_TRUE(echo.rounds->Await(echo.rounds->AllChunks(), absl::InfiniteFuture())); });
  echo.rounds->Fail(absl::CancelledError("over"));
  waiting.join();
}

}  // namespace
}  // namespace syncgrads::client
