// The collective operations with real servers.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AllReduceTest, GivesEveryWorkerTheSumOfThoseTakingPartAndTheirNumber) {
  Cluster cluster;
  Workers workers(cluster, 3);
  const std::vector<std::vector<bool>> skips = {
      {false, false, false}, {false, true, false}, {false, true, true}, {true, true, true}};
  const float sums[] = {6, 4, 1, -7};
  const uint32_t counts[] = {3, 2, 1, 0};
  for (size_t i = 0; i < skips.size(); ++i) {
    workers.Run([&](uint32_t rank, Client& client) {
      const std::vector<float> mine = {rank + 1.0f};
      std::vector<float> sum = {-7};
      const auto count = skips[i][rank]
                             ? client.AllReduceSkip("v", Out(sum), Reduction::kSum, kTimeout)
                             : client.AllReduce("v", In(mine), Out(sum), Reduction::kSum, kTimeout);
      ASSERT_OK(count);
      EXPECT_EQ(*count, counts[i]);
      EXPECT_THAT(sum, ElementsAre(sums[i]));  // if all workers skip, the buffer is unchanged
    });
  }
}

TEST(AllReduceTest, HandlesEveryPatternOfSkipsForOneToFiveWorkers) {
  Cluster cluster(2);
  for (uint32_t n = 1; n <= 5; ++n) {
    Workers workers(cluster, n, absl::StrCat("job", n));
    workers.Run([&](uint32_t rank, Client& client) {
      for (uint32_t pattern = 0; pattern < (1u << n); ++pattern) {
        double expected = 0;
        uint32_t taking_part = 0;
        for (uint32_t r = 0; r < n; ++r) {
          if ((pattern >> r) & 1) continue;
          expected += std::pow(10, r);
          ++taking_part;
        }
        const std::vector<double> mine = {std::pow(10, rank)};
        std::vector<double> sum = {0};
        const auto count =
            (pattern >> rank) & 1
                ? client.AllReduceSkip("v", Out(sum), Reduction::kSum, kTimeout)
                : client.AllReduce("v", In(mine), Out(sum), Reduction::kSum, kTimeout);
        ASSERT_OK(count);
        EXPECT_EQ(*count, taking_part) << "pattern " << pattern;
        EXPECT_EQ(sum[0], expected) << "pattern " << pattern;
      }
      EXPECT_OK(client.Leave(kTimeout));
    });
  }
}

TEST(AllReduceTest, ReducesInEveryWay) {
  Cluster cluster;
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    const std::vector<double> mine = {rank + 1.0, -2.0 * rank - 1};
    const struct {
      Reduction reduction;
      double first, second;
    } cases[] = {{Reduction::kSum, 6, -9},
                 {Reduction::kAverage, 2, -3},
                 {Reduction::kMin, 1, -5},
                 {Reduction::kMax, 3, -1},
                 {Reduction::kProduct, 6, -15}};
    for (const auto& c : cases) {
      std::vector<double> out(2);
      ASSERT_OK(client.AllReduce("v", In(mine), Out(out), c.reduction, kTimeout));
      EXPECT_EQ(out[0], c.first);
      EXPECT_EQ(out[1], c.second);
    }
  });
}

TEST(AllReduceTest, WorksInPlaceOverManyChunksAndServers) {
  Cluster cluster(3);
  Workers workers(cluster, 2);
  workers.Run([](uint32_t rank, Client& client) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values((5 << 20) / 4 + 3);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000 + rank);
      ASSERT_OK(client.AllReduce("big", In(values), Out(values), Reduction::kSum, kTimeout));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], 2.0f * (i % 1000) + 1) << i;
      }
    }
  });
}

TEST(AllReduceTest, GivesOneBitPatternWhateverTheOrderOfArrival) {
  Cluster cluster;
  Workers workers(cluster, 3);
  std::vector<std::vector<double>> inputs = {{0.1, 1e16}, {0.2, 1}, {0.3, -1e16}};
  std::vector<int> order = {0, 1, 2};
  std::vector<double> first;
  do {
    std::vector<std::vector<double>> outputs(3, std::vector<double>(2));
    std::vector<std::unique_ptr<Pending>> pending(3);
    for (int rank : order) {
      auto started =
          workers[rank].AllReduceAsync("v", In(inputs[rank]), Out(outputs[rank]), Reduction::kSum);
      ASSERT_OK(started);
      pending[rank] = std::make_unique<Pending>(*std::move(started));
    }
    for (int rank : order) ASSERT_OK(pending[rank]->Wait(kTimeout));
    if (first.empty()) first = outputs[0];
    for (const std::vector<double>& output : outputs) {
      EXPECT_EQ(0, std::memcmp(output.data(), first.data(), BytesOf(first)));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(AllReduceTest, AsynchronousOperationsCompleteInAnyOrder) {
  Cluster cluster;
  Workers workers(cluster, 2);
  workers.Run([](uint32_t rank, Client& client) {
    std::vector<float> a = {1}, b = {2};
    // The workers start the two operations in opposite orders.
    auto first = rank == 0 ? client.AllReduceAsync("a", In(a), Out(a), Reduction::kSum)
                           : client.AllReduceAsync("b", In(b), Out(b), Reduction::kSum);
    auto second = rank == 0 ? client.AllReduceAsync("b", In(b), Out(b), Reduction::kSum)
                            : client.AllReduceAsync("a", In(a), Out(a), Reduction::kSum);
    ASSERT_OK(first);
    ASSERT_OK(second);
    ASSERT_OK(second->Wait(kTimeout));
    EXPECT_TRUE(second->Ready());
    ASSERT_OK(first->Wait(kTimeout));
    EXPECT_EQ(a[0], 2);
    EXPECT_EQ(b[0], 4);
  });
}

TEST(AllReduceTest, IsNotReadyBeforeEverybodyHasContributed) {
  Cluster cluster;
  Workers workers(cluster, 2);
  std::vector<int32_t> a = {1}, b = {2};
  auto mine = workers[0].AllReduceAsync("v", In(a), Out(a), Reduction::kSum);
  ASSERT_OK(mine);
  EXPECT_THAT(AwaitReason({"w1"}, [&] { return mine->Wait(absl::Milliseconds(400)); }),
              HasSubstr("w1"));
  EXPECT_FALSE(mine->Ready());
  const auto again = workers[0].AllReduceAsync("v", In(a), Out(a), Reduction::kSum);
  EXPECT_TRUE(absl::IsFailedPrecondition(again.status())) << again.status();
  ASSERT_OK(workers[1].AllReduce("v", In(b), Out(b), Reduction::kSum, kTimeout));
  ASSERT_OK(mine->Wait(kTimeout));
  EXPECT_TRUE(mine->Ready());
  EXPECT_THAT(a, ElementsAre(3));
  EXPECT_EQ(a, b);
}

TEST(AllReduceTest, TakesAnotherCallOnceTheLastIsCompleteThoughNobodyWaitedForIt) {
  Cluster cluster;
  Workers workers(cluster, 1);
  std::vector<int64_t> a = {5};
  auto first = workers[0].AllReduceAsync("v", In(a), Out(a), Reduction::kSum);
  ASSERT_OK(first);
  ASSERT_OK(workers[0].Barrier("b", kTimeout));
  ASSERT_TRUE(WaitUntil([&] { return first->Ready(); }));
  ASSERT_OK(workers[0].AllReduce("v", In(a), Out(a), Reduction::kSum, kTimeout));
  const auto count = first->Wait(kTimeout);
  ASSERT_OK(count);
  EXPECT_EQ(*count, 1u);
}

TEST(AllReduceTest, RefusesAnAverageOfIntegers) {
  Cluster cluster;
  Workers workers(cluster, 1);
  std::vector<int32_t> a = {1};
  const auto status =
      workers[0].AllReduce("v", In(a), Out(a), Reduction::kAverage, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(AllReduceTest, RefusesWorkersThatDifferInLength) {
  Cluster cluster;
  Workers workers(cluster, 2);
  std::vector<float> three(3), four(4);
  auto right = workers[0].AllReduceAsync("v", In(three), Out(three), Reduction::kSum);
  ASSERT_OK(right);
  // The coordinator compares the second registration with the first one.
  ASSERT_NE(cluster.journal().WaitForLine({"group 0 \"all_reduce/sum/v\""}, kTimeout), "");
  EXPECT_TRUE(absl::IsDeadlineExceeded(right->Wait(absl::Milliseconds(200)).status()));
  const absl::Status refused =
      workers[1].AllReduce("v", In(four), Out(four), Reduction::kSum, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("4"));
  // The operation of the other worker has not failed.
  ASSERT_OK(workers[1].AllReduce("v", In(three), Out(three), Reduction::kSum, kTimeout));
  ASSERT_OK(right->Wait(kTimeout));
}

TEST(AllReduceTest, RefusesAnotherLengthUnderTheSameName) {
  Cluster cluster;
  Workers workers(cluster, 1);
  std::vector<float> three(3), four(4);
  ASSERT_OK(workers[0].AllReduce("v", In(three), Out(three), Reduction::kSum, kTimeout));
  const absl::Status refused =
      workers[0].AllReduce("v", In(four), Out(four), Reduction::kSum, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

// Subtracts two numbers. Not commutative and, because of rounding, not associative.
void Subtract(void* accumulated, const void* next) {
  auto* a = static_cast<double*>(accumulated);
  const auto* b = static_cast<const double*>(next);
  for (int i = 0; i < 2; ++i) a[i] -= b[i];
}

TEST(AllReduceWithTest, FoldsInRankOrderOnEveryWorkerAlike) {
  Cluster cluster;
  Workers workers(cluster, 4);
  workers.Run([](uint32_t rank, Client& client) {
    const std::vector<double> mine = {std::pow(2.0, 10 * rank), rank + 1.0};
    std::vector<double> out(2);
    const auto count = client.AllReduceWith("minus", In(mine), Out(out), Subtract, kTimeout);
    ASSERT_OK(count);
    EXPECT_EQ(*count, 4u);
    EXPECT_THAT(out, ElementsAre(1.0 - 1024 - 1048576 - 1073741824, 1.0 - 2 - 3 - 4));
  });
}

TEST(AllReduceWithTest, FoldsTheContributionsOfThoseTakingPart) {
  Cluster cluster;
  Workers workers(cluster, 3);
  for (uint32_t pattern = 0; pattern < 8; ++pattern) {
    std::vector<double> expected = {-7, -7};  // if all workers skip, the buffer is unchanged
    uint32_t taking_part = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if ((pattern >> rank) & 1) continue;
      const std::vector<double> theirs = {rank + 1.0, 10 * rank + 1.0};
      if (taking_part++ == 0) {
        expected = theirs;
      } else {
        Subtract(expected.data(), theirs.data());
      }
    }
    workers.Run([&](uint32_t rank, Client& client) {
      const std::vector<double> mine = {rank + 1.0, 10 * rank + 1.0};
      std::vector<double> out = {-7, -7};
      const auto count =
          (pattern >> rank) & 1
              ? client.AllReduceWithSkip("minus", Out(out), Subtract, kTimeout)
              : client.AllReduceWith("minus", In(mine), Out(out), Subtract, kTimeout);
      ASSERT_OK(count);
      EXPECT_EQ(*count, taking_part);
      EXPECT_EQ(out, expected);
    });
  }
}

TEST(AllReduceWithTest, FoldsOnceHoweverOftenItIsWaitedFor) {
  Cluster cluster;
  Workers workers(cluster, 2);
  workers.Run([](uint32_t rank, Client& client) {
    const std::vector<double> mine = {rank + 1.0, 3.0};
    std::vector<double> out(2);
    auto pending = rank == 0 ? client.AllReduceWithAsync("minus", In(mine), Out(out), Subtract)
                             : client.AllReduceWithSkipAsync("minus", Out(out), Subtract);
    ASSERT_OK(pending);
    ASSERT_OK(pending->Wait(kTimeout));
    EXPECT_TRUE(pending->Ready());
    EXPECT_THAT(out, ElementsAre(1, 3));
    out = {0, 0};
    const auto again = pending->Wait(kTimeout);
    ASSERT_OK(again);
    EXPECT_EQ(*again, 1u);
    EXPECT_THAT(out, ElementsAre(0, 0));
  });
}

// Each operation is begun on all workers before any of them waits for it.
TEST(AsynchronousTest, EveryOperationCompletes) {
  Cluster cluster;
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    const std::vector<float> mine = {rank + 1.0f};
    std::vector<float> skipped = {-7}, reduced = {-7}, sent = {rank + 5.0f}, all(3);
    int64_t step = 10 + rank;
    const NamedTensor state[] = {{{"step", DType::kI64, {}}, &step}};
    auto skip = rank == 1 ? client.AllReduceSkipAsync("skip", Out(skipped), Reduction::kSum)
                          : client.AllReduceAsync("skip", In(mine), Out(skipped), Reduction::kSum);
    auto reduce = client.ReduceAsync("reduce", In(mine), Out(reduced), Reduction::kMax, 2);
    auto broadcast = client.BroadcastAsync("broadcast", Out(sent), 1);
    auto broadcast_all = client.BroadcastAllAsync("state", state, 2);
    auto gather = client.AllGatherAsync("gather", In(mine), Out(all));
    auto barrier = client.BarrierAsync("barrier");
    for (auto* pending : {&skip, &reduce, &broadcast, &broadcast_all, &gather, &barrier}) {
      ASSERT_OK(*pending);
      ASSERT_OK((*pending)->Wait(kTimeout));
      EXPECT_TRUE((*pending)->Ready());
    }
    EXPECT_THAT(skipped, ElementsAre(4));
    EXPECT_THAT(reduced, ElementsAre(rank == 2 ? 3 : -7));
    EXPECT_THAT(sent, ElementsAre(6));
    EXPECT_EQ(step, 12);
    EXPECT_THAT(all, ElementsAre(1, 2, 3));
  });
}

TEST(ReduceTest, WritesTheRootAlone) {
  Cluster cluster;
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    for (uint32_t root = 0; root < 3; ++root) {
      const std::vector<float> mine = {rank + 1.0f};
      std::vector<float> out = {-7};
      Array output = Out(out);
      if (rank != root && root == 2) output.data = nullptr;
      const auto count = client.Reduce("v", In(mine), output, Reduction::kSum, root, kTimeout);
      ASSERT_OK(count);
      EXPECT_EQ(*count, 3u);
      EXPECT_THAT(out, ElementsAre(rank == root ? 6.0f : -7.0f));
    }
    auto pending = client.ReduceAsync("v", {DType::kF32, nullptr, 1}, {}, Reduction::kSum, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(pending.status())) << pending.status();
  });
}

TEST(BroadcastTest, GivesEverybodyTheRootsBitsFromAnyRoot) {
  Cluster cluster;
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    for (uint32_t root = 0; root < 3; ++root) {
      std::vector<float> values = {rank + 0.5f, -0.0f, std::nanf("7")};
      ASSERT_OK(client.Broadcast("v", Out(values), root, kTimeout));
      const std::vector<float> expected = {root + 0.5f, -0.0f, std::nanf("7")};
      EXPECT_EQ(0, std::memcmp(values.data(), expected.data(), BytesOf(expected)));
    }
    auto pending = client.BroadcastAsync("v", {DType::kF32, nullptr, 1}, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(pending.status())) << pending.status();
    std::vector<float> values = {1, 2, 3};
    EXPECT_TRUE(absl::IsInvalidArgument(client.Broadcast("v", Out(values), 3, kTimeout)));
  });
}

TEST(BroadcastTest, SaysSoIfTwoWorkersNameDifferentRoots) {
  Cluster cluster;
  Workers workers(cluster, 2);
  workers.Run([](uint32_t rank, Client& client) {
    std::vector<float> values = {1.0f};
    const absl::Status two = client.Broadcast("v", Out(values), rank, kTimeout);
    EXPECT_TRUE(absl::IsFailedPrecondition(two)) << two;
    EXPECT_THAT(std::string(two.message()), HasSubstr("2 members"));
    const absl::Status none = client.Broadcast("v", Out(values), 1 - rank, kTimeout);
    EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
    EXPECT_THAT(std::string(none.message()), HasSubstr("no member took part as the root"));
    // After the error, the name can be used for another call.
    EXPECT_OK(client.Broadcast("v", Out(values), 0, kTimeout));
  });
}

TEST(BroadcastAllTest, SynchronisesAStateOfManyTypesAndScalars) {
  Cluster cluster(2);
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    for (uint32_t root : {0, 2}) {
      std::vector<float> kernel(300000, rank + 1.0f);
      std::vector<double> slots(1000, rank + 2.0);
      int64_t step = 100 + rank;
      int32_t epoch = 7 + static_cast<int32_t>(rank);
      const NamedTensor state[] = {{{"kernel", DType::kF32, {1000, 300}}, kernel.data()},
                                   {{"slots", DType::kF64, {1000}}, slots.data()},
                                   {{"step", DType::kI64, {}}, &step},
                                   {{"epoch", DType::kI32, {}}, &epoch}};
      ASSERT_OK(client.BroadcastAll("state", state, root, kTimeout));
      EXPECT_EQ(kernel, std::vector<float>(300000, root + 1.0f));
      EXPECT_EQ(slots, std::vector<double>(1000, root + 2.0));
      EXPECT_EQ(step, 100 + root);
      EXPECT_EQ(epoch, 7 + static_cast<int32_t>(root));
    }
  });
}

TEST(AllGatherTest, ConcatenatesInRankOrderOverManyChunks) {
  Cluster cluster(2);
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    const size_t n = 700001;  // three chunks of 1 MiB
    std::vector<int32_t> mine(n);
    std::iota(mine.begin(), mine.end(), static_cast<int32_t>(rank * 1000000));
    std::vector<int32_t> all(3 * n);
    const auto count = client.AllGather("v", In(mine), Out(all), kTimeout);
    ASSERT_OK(count);
    EXPECT_EQ(*count, 3u);
    for (size_t r = 0; r < 3; ++r) {
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(all[r * n + i], static_cast<int32_t>(r * 1000000 + i));
      }
    }
    std::vector<int32_t> short_of(2 * n);
    EXPECT_TRUE(
        absl::IsInvalidArgument(client.AllGatherAsync("v", In(mine), Out(short_of)).status()));
  });
}

TEST(BarrierTest, HoldsEverybodyUntilTheLastArrives) {
  Cluster cluster;
  Workers workers(cluster, 3);
  std::atomic<int> arrived{0};
  workers.Run([&](uint32_t, Client& client) {
    for (int i = 1; i <= 5; ++i) {
      ++arrived;
      ASSERT_OK(client.Barrier("b", kTimeout));
      EXPECT_GE(arrived.load(), 3 * i);
      auto pending = client.BarrierAsync("c");
      ASSERT_OK(pending);
      ASSERT_OK(pending->Wait(kTimeout));
    }
  });
}

TEST(PrintInOrderTest, PrintsOneLineForEachRankInTurn) {
  Cluster cluster;
  Workers workers(cluster, 3);
  std::ostringstream shared;  // has no lock, because PrintInOrder lets one worker write at a time
  workers.Run([&](uint32_t rank, Client& client) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(client.PrintInOrder(shared, absl::StrCat("text ", rank), kTimeout));
    }
  });
  EXPECT_THAT(shared.str(), ::testing::MatchesRegex("([^ \n]+ \\[0 / 3\\] text 0\n"
                                                    "[^ \n]+ \\[1 / 3\\] text 1\n"
                                                    "[^ \n]+ \\[2 / 3\\] text 2\n){2}"));
}

}  // namespace
}  // namespace syncgrads::testing
