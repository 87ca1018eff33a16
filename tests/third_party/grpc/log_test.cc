#include "third_party/grpc/log.h"

#include <grpc/support/log.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GrpcLogTest, TakesTheLinesForAsLongAsItLives) {
  std::vector<std::string> lines;
  {
    const GrpcLog log([&lines](const std::string& line) { lines.push_back(line); });
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    gpr_log(GPR_ERROR, "handshake failed: %d", 7);
  }
  gpr_log(GPR_ERROR, "this goes to stderr");
  EXPECT_THAT(lines,
              ElementsAre(AllOf(HasSubstr("log_test.cc"), HasSubstr("handshake failed: 7"))));
}

class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return now; }

  absl::Time now = absl::UnixEpoch();
};

TEST(GrpcLogTest, OfThoseFromOnePlaceTakesOneInTenSeconds) {
  std::vector<std::string> lines;
  FakeClock clock;
  const GrpcLog log([&lines](const std::string& line) { lines.push_back(line); }, clock);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  for (int i = 0; i < 5; ++i) {
    if (i == 4) clock.now += absl::Seconds(10);
    gpr_log(GPR_ERROR, "handshake %d failed", i);
    gpr_log(GPR_ERROR, "connection %d lost", i);
  }
  EXPECT_THAT(lines,
              ElementsAre(HasSubstr("handshake 0 failed"), HasSubstr("connection 0 lost"),
                          HasSubstr("handshake 4 failed (and 3 others since the last such line)"),
                          HasSubstr("connection 4 lost (and 3 others since the last such line)")));
}

}  // namespace
}  // namespace syncgrads
