#include "common/net/call_flood.h"

#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "common/net/open_connections.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/net/tcp_connection.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Three connections: a, b and c.
class CallFloodTest : public ::testing::Test {
 protected:
  CallFloodTest() {
    for (const char* endpoint : {"a", "b", "c"}) {
      connections_.Add(sockets_[endpoint].server, endpoint, "10.0.0.1");
    }
  }

  std::map<std::string, TcpConnection> sockets_;
  // What gRPC counts.
  int64_t open_ = 0;
  std::map<std::string, int64_t> begun_;
  OpenConnections connections_{{}, [](const std::string& /*line*/) {}};
  CallFlood flood_{{[this] { return open_; }, [this] { return begun_; }}, connections_};
};

TEST_F(CallFloodTest, TheConnectionsThatBeginMostCallsAreReset) {
  begun_ = {{"a", 100}, {"b", 100}, {"c", 70'000}};
  open_ = 2000;
  EXPECT_THAT(flood_.Look(), IsEmpty());
  EXPECT_FALSE(flood_.is_flooded());
  open_ = 2001;
  EXPECT_THAT(flood_.Look(), IsEmpty()) << "it is not known yet who has begun them";
  EXPECT_TRUE(flood_.is_flooded());
  open_ = 3000;
  begun_ = {{"a", 1000}, {"b", 200}, {"c", 70'005}};
  EXPECT_THAT(flood_.Look(), ElementsAre("a has begun 900 calls within moments, while 3000 calls "
                                         "waited; at most 2000 may"));
  EXPECT_TRUE(sockets_["a"].HasEnded());
  // gRPC may still have calls of the one that is reset.
  open_ = 3500;
  begun_ = {{"a", 1500}, {"b", 300}, {"c", 70'015}};
  EXPECT_THAT(flood_.Look(), ElementsAre(StartsWith("b has begun 100 calls")));
  open_ = 4000;
  begun_["c"] += 99;
  EXPECT_THAT(flood_.Look(), IsEmpty()) << "99 calls are not many";
  EXPECT_FALSE(sockets_["c"].HasEnded());
  open_ = 10'001;
  begun_["c"] += 4;
  EXPECT_THAT(flood_.Look(), ElementsAre(StartsWith("c has begun 4 calls")));
}

TEST_F(CallFloodTest, AConnectionThatIsNewHasBegunAllOfItsCallsSinceTheLastLook) {
  open_ = 3000;
  begun_ = {{"a", 1000}};
  flood_.Look();
  open_ = 4000;
  begun_ = {{"a", 1010}, {"b", 990}};
  EXPECT_THAT(flood_.Look(), ElementsAre(StartsWith("b has begun 990 calls")));
}

TEST_F(CallFloodTest, NobodyIsResetWhileTheCallsThatWaitBecomeFewer) {
  open_ = 5000;
  flood_.Look();
  open_ = 4000;
  begun_ = {{"a", 500}};
  EXPECT_THAT(flood_.Look(), IsEmpty());
  EXPECT_TRUE(flood_.is_flooded());
  open_ = 100;
  EXPECT_THAT(flood_.Look(), IsEmpty());
  EXPECT_FALSE(flood_.is_flooded());
}

TEST_F(CallFloodTest, CallsThatOurCodeKnowsOfDoNotWait) {
  std::list<OpenConnections::Call> calls;
  for (int i = 0; i < 300; ++i) calls.emplace_back(connections_, "a");
  open_ = 2300;
  flood_.Look();
  EXPECT_FALSE(flood_.is_flooded());
  calls.clear();
  flood_.Look();
  EXPECT_TRUE(flood_.is_flooded());
}

}  // namespace
}  // namespace syncgrads
