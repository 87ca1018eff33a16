#include "client/session/link_rate.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MeasuredTransport : public FakeTransport {
 public:
  std::optional<double> MeasureLink(const std::string& address, absl::Duration timeout) override {
    measured.push_back(address);
    timeouts.push_back(timeout);
    return rate;
  }

  std::optional<double> rate;
  std::vector<std::string> measured;
  std::vector<absl::Duration> timeouts;
};

class LinkRateTest : public ::testing::Test {
 protected:
  static GroupSpec Group(uint64_t bytes) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = {{"w", DType::kF32, {static_cast<int64_t>(bytes / sizeof(float))}}};
    return spec;
  }
  double For(const GroupSpec& spec, uint32_t rank = 0) {
    return link_rate_.For(spec, {"server 0", "server 1"}, rank, timers_.Now() + absl::Minutes(1));
  }

  MeasuredTransport transport_;
  FakeTimers timers_;
  LinkRate link_rate_{transport_, timers_};
};

TEST_F(LinkRateTest, IsMeasuredOnceForTheFirstGroupThatItCanInfluence) {
  transport_.rate = 1e9;
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing - sizeof(float))), 0);
  GroupSpec given = Group(LinkRate::kWorthProbing);
  given.chunk_bytes = 4096;
  EXPECT_EQ(For(given), 0);
  EXPECT_THAT(transport_.measured, IsEmpty());
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing)), 1e9);
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing)), 1e9);
  EXPECT_THAT(transport_.measured, ElementsAre("server 1"));
  EXPECT_THAT(transport_.timeouts, ElementsAre(LinkRate::kProbeTimeout));
  // It still has no influence on this group.
  EXPECT_EQ(For(given), 0);
}

TEST_F(LinkRateTest, AWorkerMeasuresTheServerAfterThatOfItsRank) {
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing), 1), 0);
  EXPECT_THAT(transport_.measured, ElementsAre("server 0"));
}

TEST_F(LinkRateTest, ALinkThatCouldNotBeMeasuredIsNotMeasuredAgain) {
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing)), 0);
  transport_.rate = 1e9;
  EXPECT_EQ(For(Group(LinkRate::kWorthProbing)), 0);
  EXPECT_EQ(transport_.measured.size(), 1u);
}

}  // namespace
}  // namespace syncgrads::client
