#include "third_party/grpc/log.h"

#include <grpc/support/log.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace syncgrads
