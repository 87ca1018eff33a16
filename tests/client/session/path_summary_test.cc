#include "client/session/path_summary.h"

#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

TEST(PathSummaryTest, ThereIsOneLineOnceEveryPathIsKnown) {
  PathSummary summary(2);
  EXPECT_EQ(summary.Set(1, "through shared memory"), std::nullopt);
  EXPECT_EQ(summary.Set(0, "through shared memory"),
            "payloads to all 2 servers go through shared memory");
  EXPECT_EQ(summary.Set(0, "through shared memory"), std::nullopt) << "nothing has changed";
}

TEST(PathSummaryTest, OneServerHasNoNumber) {
  PathSummary summary(1);
  EXPECT_EQ(summary.Set(0, "over TCP"), "payloads to the server go over TCP");
}

TEST(PathSummaryTest, ServersWithTheSamePathAreListedTogether) {
  PathSummary summary(3);
  summary.Set(0, "over TCP");
  summary.Set(1, "through shared memory");
  EXPECT_EQ(summary.Set(2, "over TCP"),
            "payloads to servers 0, 2 go over TCP; payloads to server 1 go through shared memory");
}

TEST(PathSummaryTest, AChangeIsReported) {
  PathSummary summary(2);
  summary.Set(0, "through shared memory");
  summary.Set(1, "through shared memory");
  EXPECT_EQ(summary.Set(1, "over TCP"),
            "payloads to server 1 go over TCP; payloads to server 0 go through shared memory");
  EXPECT_EQ(summary.Set(1, "through shared memory"),
            "payloads to all 2 servers go through shared memory");
}

}  // namespace
}  // namespace syncgrads::client
