#include "client/psctl/cluster_query.h"

#include <memory>
#include <string>
#include <vector>

#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/psctl/fake_server.h"

namespace syncgrads::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(2);

// Returns, for example, "1 ok" or "1 silent", in the order of the answers.
std::vector<std::string> Texts(const std::vector<Answer>& answers) {
  std::vector<std::string> texts;
  for (const Answer& answer : answers) {
    texts.push_back(absl::StrCat(answer.index.has_value() ? absl::StrCat(*answer.index) : "?",
                                 answer.reply.ok() ? " ok" : " silent"));
  }
  return texts;
}

class ClusterQueryTest : public ::testing::Test {
 protected:
  ClusterQueryTest() {
    zero_.Lists(0, "");
    zero_.Lists(1, one_.address());
    zero_.Lists(2, two_->address());
    for (FakeServer* follower : {&one_, two_.get()}) {
      follower->Set([this](v1::GetStatusReply& reply) {
        reply.mutable_server()->set_coordinator(zero_.address());
      });
    }
  }

  FakeServer zero_{0}, one_{1};
  std::unique_ptr<FakeServer> two_ = std::make_unique<FakeServer>(2);
};

TEST_F(ClusterQueryTest, OneAddressLeadsToAllServers) {
  for (const std::string& address : {zero_.address(), one_.address(), two_->address()}) {
    ClusterQuery query(address, kLong);
    const std::vector<Answer> answers = query.Ask();
    EXPECT_THAT(Texts(answers), ElementsAre("0 ok", "1 ok", "2 ok"));
    EXPECT_EQ(answers[1].address, one_.address());
    EXPECT_THAT(Texts(query.Ask()), ElementsAre("0 ok", "1 ok", "2 ok"));
  }
}

TEST_F(ClusterQueryTest, ADeadServerIsNamedAndNotWaitedFor) {
  one_.Stop();
  ClusterQuery query(zero_.address(), kLong);
  const std::vector<Answer> answers = query.Ask();
  EXPECT_THAT(Texts(answers), ElementsAre("0 ok", "1 silent", "2 ok"));
  EXPECT_EQ(answers[1].reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NameOf(answers[1]), "server 1, " + one_.address());
  const v1::ClusterStatus cluster = ToProto(answers);
  ASSERT_EQ(cluster.servers_size(), 3);
  EXPECT_FALSE(cluster.servers(1).has_status());
  EXPECT_THAT(cluster.servers(1).error(), HasSubstr(one_.address()));
  EXPECT_EQ(cluster.servers(2).status().server_index(), 2u);
}

TEST_F(ClusterQueryTest, TheOthersAreAskedOnAfterTheCoordinatorHasDied) {
  ClusterQuery query(zero_.address(), kLong);
  query.Ask();
  zero_.Stop();
  EXPECT_THAT(Texts(query.Ask()), ElementsAre("0 silent", "1 ok", "2 ok"));
  ClusterQuery from_another(one_.address(), kLong);
  EXPECT_THAT(Texts(from_another.Ask()), ElementsAre("0 silent", "1 ok"));
}

TEST_F(ClusterQueryTest, AServerThatWasRestartedElsewhereIsFoundAgain) {
  ClusterQuery query(zero_.address(), kLong);
  query.Ask();
  two_->Stop();
  FakeServer again(2);
  zero_.Set([&](v1::GetStatusReply& reply) {
    reply.mutable_server()->mutable_servers(2)->set_address(again.address());
  });
  const std::vector<Answer> answers = query.Ask();
  EXPECT_THAT(Texts(answers), ElementsAre("0 ok", "1 ok", "2 ok"));
  EXPECT_EQ(answers[2].address, again.address());
}

TEST_F(ClusterQueryTest, AServerThatHasNeverConnectedHasNoAddress) {
  zero_.Lists(3, "");
  ClusterQuery query(zero_.address(), kLong);
  const std::vector<Answer> answers = query.Ask();
  EXPECT_THAT(Texts(answers), ElementsAre("0 ok", "1 ok", "2 ok", "3 silent"));
  EXPECT_EQ(NameOf(answers[3]), "server 3");
  EXPECT_THAT(std::string(answers[3].reply.status().message()), HasSubstr("never connected"));
}

TEST_F(ClusterQueryTest, AsksALimitedNumberOfServersAndSaysHowManyAreLeftOut) {
  constexpr size_t kMost = kMostServers;
  for (uint32_t index = 3; index < kMost + 500; ++index) zero_.Lists(index, one_.address());
  ClusterQuery query(zero_.address(), kLong);
  for (int number = 0; number < 2; ++number) {
    const std::vector<Answer> answers = query.Ask();
    ASSERT_EQ(answers.size(), kMost + 1);
    for (size_t i = 0; i < kMost; ++i) EXPECT_TRUE(answers[i].reply.ok()) << i;
    const Answer& left_out = answers.back();
    EXPECT_EQ(NameOf(left_out), absl::StrCat("server ", kMost, ", ", one_.address()));
    EXPECT_FALSE(left_out.was_asked);
    EXPECT_EQ(left_out.reply.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(left_out.reply.status().message()),
                AllOf(HasSubstr("499 others"), HasSubstr("1000 servers")));
  }
}

TEST_F(ClusterQueryTest, OnlyTheCoordinatorNamesOtherServers) {
  one_.Lists(7, two_->address());
  ClusterQuery query(zero_.address(), kLong);
  EXPECT_THAT(Texts(query.Ask()), ElementsAre("0 ok", "1 ok", "2 ok"));
}

TEST_F(ClusterQueryTest, AServerThatIsNamedAtTwoAddressesIsNotAskedForEver) {
  FakeServer first(3), second(3);
  zero_.Lists(3, first.address());
  zero_.Lists(3, second.address());
  first.Stop();
  second.Stop();
  ClusterQuery query(zero_.address(), kLong);
  EXPECT_THAT(Texts(query.Ask()), ElementsAre("0 ok", "1 ok", "2 ok", "3 silent"));
}

TEST_F(ClusterQueryTest, IfNobodyAnswersTheAddressIsNamed) {
  zero_.Stop();
  ClusterQuery query(zero_.address(), kLong);
  const std::vector<Answer> answers = query.Ask();
  EXPECT_THAT(Texts(answers), ElementsAre("? silent"));
  EXPECT_EQ(NameOf(answers[0]), "the server at " + zero_.address());
}

}  // namespace
}  // namespace syncgrads::client
