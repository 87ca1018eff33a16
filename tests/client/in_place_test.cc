// Results that are used in the memory where they arrive, through shared memory and through sockets.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/client.h"
#include "common/group/group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads {
namespace {

using testing::Cluster;
using testing::kTimeout;
using testing::Workers;

using InPlace = Group::InPlace;

constexpr int64_t kBig = 700'000;  // three chunks; the last one also has "small"

// Parameter: whether the servers share memory.
class InPlaceTest : public ::testing::TestWithParam<bool> {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options;
    options.shared_memory = GetParam();
    return options;
  }
  static GroupSpec Spec() {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"big", DType::kF32, {kBig}}, {"small", DType::kF32, {3}}};
    spec.chunk_bytes = 1 << 20;
    return spec;
  }
  static std::vector<float> Read(const Group& group, uint32_t tensor) {
    const auto pieces = group.InPlaceResult(TensorId{tensor});
    EXPECT_OK(pieces);
    std::string bytes;
    if (pieces.ok()) {
      for (const absl::Span<const std::byte> piece : *pieces) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % sizeof(float), 0u);
        EXPECT_EQ(piece.size() % sizeof(float), 0u);
        bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  static absl::Status PushAll(Group& group, const std::vector<float>& values, uint32_t tensor) {
    return group.Push(TensorId{tensor}, values.data(), values.size() * sizeof(float), InPlace());
  }

  Cluster cluster_{2, Options()};
};

TEST_P(InPlaceTest, IsTheMeanAndStaysWhileOthersGoOn) {
  Workers workers(cluster_, 3);
  workers.Run([](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    std::vector<float> big(kBig);
    std::vector<float> small(3);
    for (int step = 1; step <= 6; ++step) {
      for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i % 977) * step + rank;
      small.assign(3, static_cast<float>(step * rank));
      ASSERT_OK(PushAll(**group, big, 0));
      ASSERT_OK(PushAll(**group, small, 1));
      ASSERT_OK((*group)->WaitStep(kTimeout));
      const std::vector<float> mean = Read(**group, 0);
      ASSERT_EQ(mean.size(), big.size());
      for (size_t i = 0; i < big.size(); ++i) {
        ASSERT_EQ(mean[i], static_cast<float>(i % 977) * step + 1) << "element " << i;
      }
      // After the barrier the other workers continue with the next step, which must not change this
      // result.
      ASSERT_OK(client.Barrier("read", kTimeout));
      ASSERT_EQ(Read(**group, 0), mean);
      ASSERT_EQ(Read(**group, 1), std::vector<float>(3, static_cast<float>(step)));
    }
    ASSERT_OK((*group)->End(kTimeout));
    ASSERT_OK(client.Leave(kTimeout));
  });
}

TEST_P(InPlaceTest, WithABufferOnlyWhatIsInSharedMemoryStays) {
  Workers workers(cluster_, 2);
  workers.Run([](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    std::vector<float> big(kBig), small(3);
    for (int step = 1; step <= 4; ++step) {
      const auto value = static_cast<float>(step * 2);
      std::fill(big.begin(), big.end(), value + rank);
      std::fill(small.begin(), small.end(), value - rank);
      ASSERT_OK((*group)->Push(TensorId{0}, big.data(), kBig * sizeof(float), InPlace{big.data()}));
      // Only rank 0 contributes to the small tensor, which is in the last chunk of the big one.
      if (rank == 0) {
        ASSERT_OK((*group)->Push(TensorId{1}, small.data(), 12, InPlace{small.data()}));
      } else {
        ASSERT_OK((*group)->Skip(TensorId{1}, InPlace{small.data()}));
      }
      ASSERT_OK((*group)->WaitStep(kTimeout));
      EXPECT_EQ(Read(**group, 0), std::vector<float>(kBig, value + 0.5f));
      EXPECT_EQ(Read(**group, 1), std::vector<float>(3, value));
      EXPECT_EQ(big[0], GetParam() ? value + rank : value + 0.5f);
      const auto shared = (*group)->FindSharedResults();
      EXPECT_EQ(shared.size(), GetParam() ? 2u : 0u) << "one for each server";
      const auto pieces = (*group)->InPlaceResult(TensorId{0});
      ASSERT_OK(pieces);
      for (const absl::Span<const std::byte> piece : *pieces) {
        const auto has = [&](const Group::SharedResults& results) {
          return piece.data() >= results.bytes.data() &&
                 piece.data() + piece.size() <= results.bytes.data() + results.bytes.size();
        };
        EXPECT_EQ(std::any_of(shared.begin(), shared.end(), has), GetParam());
      }
    }
    ASSERT_OK(client.Leave(kTimeout));
  });
}

TEST_P(InPlaceTest, ASkipGetsTheResultToo) {
  Workers workers(cluster_, 2);
  workers.Run([](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    const std::vector<float> big(kBig, 2.5f);
    if (rank == 0) {
      ASSERT_OK(PushAll(**group, big, 0));
    } else {
      ASSERT_OK((*group)->Skip(TensorId{0}, InPlace()));
    }
    ASSERT_OK((*group)->Skip(TensorId{1}, InPlace()));
    ASSERT_OK((*group)->WaitStep(kTimeout));
    EXPECT_EQ(Read(**group, 0), big);
    EXPECT_TRUE(Read(**group, 1).empty()) << "nobody contributed to it";
    ASSERT_OK(client.Leave(kTimeout));
  });
}

TEST_P(InPlaceTest, OneTensorInPlaceAndOneInABuffer) {
  Workers workers(cluster_, 2);
  workers.Run([](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    const std::vector<float> big(kBig, static_cast<float>(rank));
    const float small[3] = {1, 2, 3};
    float result[3] = {};
    ASSERT_OK(PushAll(**group, big, 0));
    ASSERT_OK((*group)->Push(TensorId{1}, small, sizeof small, result));
    ASSERT_OK((*group)->WaitStep(kTimeout));
    EXPECT_EQ(Read(**group, 0), std::vector<float>(kBig, 0.5f));
    EXPECT_THAT(result, ::testing::ElementsAre(1, 2, 3));
    ASSERT_OK(client.Leave(kTimeout));
  });
}

TEST_P(InPlaceTest, WithoutOneSaysWhatToDo) {
  Workers workers(cluster_, 1);
  workers.Run([](uint32_t, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    const absl::Status none = (*group)->InPlaceResult(TensorId{1}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
    EXPECT_THAT(none.message(), ::testing::HasSubstr("\"small\" of group \"model\""));
    EXPECT_THAT(none.message(), ::testing::HasSubstr("push it with InPlace"));
    EXPECT_TRUE(absl::IsInvalidArgument((*group)->InPlaceResult(TensorId{2}).status()));
    ASSERT_OK(client.Leave(kTimeout));
  });
}

// Two steps go by before a result is where an earlier one was.
void TestThatUsedResultsAreTheCallersOwn(Cluster& cluster, const GroupSpec& spec,
                                         bool expects_same_place) {
  Workers workers(cluster, 2);
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(spec, kTimeout);
    ASSERT_OK(group);
    std::vector<float> big(kBig), big_place(kBig);
    const std::vector<TensorId> ids = {TensorId{0}, TensorId{1}};
    for (int step = 1; step <= 6; ++step) {
      for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<float>(i % 977) * step + rank;
      std::vector<float> small(3, static_cast<float>(step)), small_place(3, -1.0f), memory(3);
      ASSERT_OK((*group)->Push(TensorId{0}, big.data(), big.size() * sizeof(float), InPlace()));
      ASSERT_OK((*group)->CopyAndPush(TensorId{1}, small.data(), 3 * sizeof(float), memory.data(),
                                      InPlace()));
      small.assign(3, -2.0f);
      ASSERT_OK((*group)->WaitStep(kTimeout));
      std::vector<void*> places = {big_place.data(), small_place.data()};
      ASSERT_OK((*group)->UseResults(ids, absl::MakeSpan(places)));
      EXPECT_EQ(places[0] != big_place.data(), expects_same_place);
      const auto used = absl::MakeSpan(static_cast<float*>(places[0]), kBig);
      for (size_t i = 0; i < used.size(); ++i) {
        ASSERT_EQ(used[i], static_cast<float>(i % 977) * step + 0.5f)
            << "element " << i << ", step " << step;
      }
      auto* const three = static_cast<float*>(places[1]);
      ASSERT_EQ(three[2], static_cast<float>(step));
      ASSERT_EQ(memory[2], static_cast<float>(step));
      // Each worker changes the results, and the other one does not see it.
      for (float& value : used) value *= static_cast<float>(rank + 2);
      three[2] = 1000.0f + static_cast<float>(rank);
      ASSERT_OK(client.Barrier("changed", kTimeout));
      EXPECT_EQ(used[kBig - 1], (static_cast<float>((kBig - 1) % 977) * step + 0.5f) *
                                    static_cast<float>(rank + 2));
      EXPECT_EQ(three[2], 1000.0f + static_cast<float>(rank));
      if (step == 1) {
        // It also takes back changes.
        ASSERT_OK((*group)->UseResults(ids, absl::MakeSpan(places)));
        EXPECT_EQ(static_cast<float*>(places[0])[kBig - 1],
                  static_cast<float>((kBig - 1) % 977) * step + 0.5f);
      }
    }
    ASSERT_OK(client.Leave(kTimeout));
  });
}

TEST_P(InPlaceTest, UsedResultsAreTheCallersOwn) {
  Cluster one(1, Options());
  TestThatUsedResultsAreTheCallersOwn(one, Spec(), /*expects_same_place=*/GetParam());
}

TEST_P(InPlaceTest, ResultsOfTwoServersAreCopied) {
  TestThatUsedResultsAreTheCallersOwn(cluster_, Spec(), /*expects_same_place=*/false);
}

TEST_P(InPlaceTest, UseNeedsAPlaceForEachTensor) {
  Workers workers(cluster_, 1);
  workers.Run([](uint32_t, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    const std::vector<float> big(kBig, 1.0f), small(3, 1.0f);
    const auto use = [&](std::vector<TensorId> ids, std::vector<void*> places) {
      return (*group)->UseResults(ids, absl::MakeSpan(places));
    };
    std::vector<float> place(kBig);
    EXPECT_TRUE(absl::IsFailedPrecondition(use({TensorId{1}}, {place.data()})));
    ASSERT_OK(PushAll(**group, big, 0));
    ASSERT_OK(PushAll(**group, small, 1));
    ASSERT_OK((*group)->WaitStep(kTimeout));
    EXPECT_TRUE(absl::IsInvalidArgument(use({TensorId{0}, TensorId{1}}, {place.data()})));
    EXPECT_TRUE(absl::IsInvalidArgument(use({TensorId{0}}, {nullptr})));
    EXPECT_TRUE(absl::IsInvalidArgument(use({TensorId{2}}, {place.data()})));
    ASSERT_OK(client.Leave(kTimeout));
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, InPlaceTest, ::testing::Bool(), [](const auto& path) {
  return path.param ? std::string("SharedMemory") : std::string("Stream");
});

}  // namespace
}  // namespace syncgrads
