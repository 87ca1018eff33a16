#include "common/net/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;

std::string CongestionControlOf(int socket) {
  char name[16] = "";
  socklen_t size = sizeof name;
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return "";
  return name;
}

// Every kernel has reno, and every user may select it.
TEST(CongestionControlTest, IsSetOnATcpSocket) {
  ASSERT_TRUE(CheckCongestionControl("reno").ok());
  const int tcp = socket(AF_INET6, SOCK_STREAM, 0);
  SetCongestionControl(tcp, "reno");
  EXPECT_EQ(CongestionControlOf(tcp), "reno");
  close(tcp);
}

TEST(CongestionControlTest, IsTheKernelsUnlessNamed) {
  EXPECT_TRUE(CheckCongestionControl("").ok());
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  const std::string before = CongestionControlOf(tcp);
  SetCongestionControl(tcp, "");
  EXPECT_EQ(CongestionControlOf(tcp), before);
  close(tcp);
}

TEST(CongestionControlTest, OneThatThereIsNotIsRefusedWithThoseThatThereAre) {
  const absl::Status status = CheckCongestionControl("carrier-pigeon");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"carrier-pigeon\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("reno"));
}

}  // namespace
}  // namespace syncgrads
