// Groups with compression, with real servers, through shared memory and through sockets.

#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/codec/codec.h"
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

constexpr int64_t kBig = 150'000;
constexpr uint32_t kWorkers = 3;
constexpr int kSteps = 12;

struct Case {
  Encoding encoding;
  bool shared;
};

class CompressionTest : public ::testing::TestWithParam<Case> {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options;
    options.shared_memory = GetParam().shared;
    return options;
  }
  static GroupSpec Spec(const Compression& compression) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"big", DType::kF32, {kBig}}, {"bias", DType::kF32, {3}}};
    spec.compression = {compression, {}};
    spec.chunk_bytes = 256 << 10;
    return spec;
  }
  // A part of the gradient is the same in every step, so the sum over many steps shows whether
  // error feedback sends all of it in the end.
  static float Gradient(uint32_t rank, int step, int64_t i) {
    return std::sin(static_cast<float>(i % 1013)) + 0.5f * static_cast<float>(rank) +
           0.1f * static_cast<float>((i * 7 + step) % 11);
  }

  Cluster cluster_{2, Options()};
};

TEST_P(CompressionTest, AllWorkersGetTheSameBitsAndNothingIsLostForGood) {
  const Encoding& encoding = GetParam().encoding;
  Workers workers(cluster_, kWorkers);
  std::vector<std::vector<float>> results[kWorkers];
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec({encoding, encoding}), kTimeout);
    ASSERT_OK(group);
    std::vector<float> big(kBig), bias(3);
    for (int step = 1; step <= kSteps; ++step) {
      for (int64_t i = 0; i < kBig; ++i) big[i] = Gradient(rank, step, i);
      bias.assign(3, static_cast<float>(rank * step));
      ASSERT_OK((*group)->Push(TensorId{1}, bias.data(), 12, bias.data()));
      ASSERT_OK((*group)->Push(TensorId{0}, big.data(), kBig * 4, big.data()));
      ASSERT_OK((*group)->WaitStep(kTimeout));
      EXPECT_EQ(bias, std::vector<float>(3, static_cast<float>(step)));
      results[rank].push_back(big);
    }
  });
  for (uint32_t rank = 1; rank < kWorkers; ++rank) EXPECT_TRUE(results[rank] == results[0]);

  double lost = 0, norm = 0;
  for (int64_t i = 0; i < kBig; ++i) {
    double sum = 0, received = 0;
    for (int step = 1; step <= kSteps; ++step) {
      for (uint32_t rank = 0; rank < kWorkers; ++rank) sum += Gradient(rank, step, i) / kWorkers;
      received += results[0][step - 1][i];
    }
    lost += (sum - received) * (sum - received);
    norm += sum * sum;
  }
  const double most = encoding.codec == Codec::kTopK     ? 0.97
                      : encoding.codec == Codec::kOneBit ? 0.3
                                                         : 0.01;
  EXPECT_LT(std::sqrt(lost / norm), most);
}

TEST_P(CompressionTest, ResultsInPlaceAreDecoded) {
  const Compression compression{GetParam().encoding, GetParam().encoding};
  Workers workers(cluster_, 2);
  std::vector<float> copied[2], in_place[2];
  for (std::vector<float>* results : {copied, in_place}) {
    workers.Run([&](uint32_t rank, Client& client) {
      GroupSpec spec = Spec(compression);
      spec.name = results == copied ? "copied" : "in place";
      const auto group = client.Register(spec, kTimeout);
      ASSERT_OK(group);
      std::vector<float>& values = results[rank];
      for (int64_t i = 0; i < kBig; ++i) values.push_back(Gradient(rank, 1, i));
      ASSERT_OK((*group)->Skip(TensorId{1}, nullptr));
      if (results == copied) {
        ASSERT_OK((*group)->Push(TensorId{0}, values.data(), kBig * 4, values.data()));
        ASSERT_OK((*group)->WaitStep(kTimeout));
        return;
      }
      ASSERT_OK((*group)->Push(TensorId{0}, values.data(), kBig * 4, Group::InPlace()));
      ASSERT_OK((*group)->WaitStep(kTimeout));
      const auto pieces = (*group)->InPlaceResult(TensorId{0});
      ASSERT_OK(pieces);
      values.clear();
      for (const absl::Span<const std::byte> piece : *pieces) {
        const auto* const floats = reinterpret_cast<const float*>(piece.data());
        values.insert(values.end(), floats, floats + piece.size() / sizeof(float));
      }
    });
  }
  EXPECT_TRUE(copied[0] == copied[1]);
  EXPECT_TRUE(in_place[0] == copied[0]);
  EXPECT_TRUE(in_place[1] == copied[0]);
}

// Gradients are encoded; parameters are not.
TEST_P(CompressionTest, AnOptimizerOnTheServersTakesEncodedGradients) {
  Workers workers(cluster_, 2);
  std::vector<float> parameters[2];
  workers.Run([&](uint32_t rank, Client& client) {
    GroupSpec spec = Spec({GetParam().encoding, {}});
    spec.rule = Sgd{.learning_rate = 1};
    const auto group = client.Register(spec, kTimeout);
    ASSERT_OK(group);
    std::vector<float>& big = parameters[rank];
    big.assign(kBig, rank == 0 ? 0.123456789f : 0);
    std::vector<float> bias(3), gradient(kBig, 0.25f);
    ASSERT_OK((*group)->Broadcast(0, {big.data(), bias.data()}, kTimeout));
    // The parameters have arrived exactly, so they were not encoded.
    ASSERT_EQ(big, std::vector<float>(kBig, 0.123456789f));
    for (int step = 0; step < 200; ++step) {
      ASSERT_OK((*group)->Push(TensorId{0}, gradient.data(), kBig * 4, big.data()));
      ASSERT_OK((*group)->Skip(TensorId{1}, nullptr));
      ASSERT_OK((*group)->WaitStep(kTimeout));
    }
  });
  EXPECT_TRUE(parameters[0] == parameters[1]);
  // There are 200 steps with gradients of 0.25, and top-k keeps an element back for up to 100
  // steps.
  for (const float value : parameters[0]) ASSERT_NEAR(value, -50, 26);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompressionTest,
                         ::testing::Values(Case{{Codec::kF16}, false}, Case{{Codec::kBF16}, true},
                                           Case{{Codec::kInt8}, false}, Case{{Codec::kInt8}, true},
                                           Case{{Codec::kTopK, kDefaultTopKFraction}, false},
                                           Case{{Codec::kTopK, kDefaultTopKFraction}, true},
                                           Case{{Codec::kOneBit}, false},
                                           Case{{Codec::kOneBit}, true}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           std::string name = ToString(info.param.encoding) +
                                              (info.param.shared ? " shared" : " sent");
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(CompressionAgreementTest, WorkersThatCompressInOtherWaysAreToldWhichTensor) {
  Cluster cluster;
  Workers workers(cluster, 2);
  std::vector<absl::Status> status(2);
  workers.Run([&](uint32_t rank, Client& client) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {64, 64}}};
    if (rank == 1) spec.compression = {{{Codec::kInt8}, {}}};
    status[rank] = client.Register(spec, kTimeout).status();
  });
  ASSERT_NE(status[0].ok(), status[1].ok());
  EXPECT_THAT(std::string((status[0].ok() ? status[1] : status[0]).message()),
              ::testing::AllOf(::testing::HasSubstr("\"w\""), ::testing::HasSubstr("push int8")));
}

// The gradients are larger than the largest f16 number.
TEST(CompressionGuardTest, SaysWhichCodecItGivesUpAndGoesOn) {
  Cluster cluster;
  std::mutex mutex;
  std::vector<std::string> notices;
  ClientOptions options;
  options.coordinator = cluster.coordinator();
  options.job = "job";
  options.on_codec_replaced = [&](const std::string& notice) {
    const std::lock_guard<std::mutex> lock(mutex);
    notices.push_back(notice);
  };
  Client client(options);
  ASSERT_OK(client.Join(kTimeout));
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {5000}}};
  spec.compression = {{{}, {Codec::kF16}}};
  const auto group = client.Register(spec, kTimeout);
  ASSERT_OK(group);
  double received = 0;
  constexpr int kRounds = 12;
  for (int step = 0; step < kRounds; ++step) {
    std::vector<float> values(5000, 1e6f);
    ASSERT_OK((*group)->Push(TensorId{0}, values.data(), 20000, values.data()));
    ASSERT_OK((*group)->WaitStep(kTimeout));
    received += values[4321];
  }
  EXPECT_EQ(received, 1e6 * kRounds);
  ASSERT_OK(client.Leave(kTimeout));
  EXPECT_THAT(notices, ::testing::ElementsAre(::testing::AllOf(
                           ::testing::HasSubstr("results of group \"model\""),
                           ::testing::HasSubstr("are now sent as raw, previously as f16"))));
}

}  // namespace
}  // namespace syncgrads
