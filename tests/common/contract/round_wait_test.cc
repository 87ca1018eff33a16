#include "common/contract/round_wait.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/common/proto_fields.h"

namespace syncgrads {
namespace {

TEST(RoundWaitTest, ComesBackAsItWas) {
  const RoundWait sent{.group = GroupId{3},
                       .group_name = "model",
                       .round = Round{uint64_t{1} << 40},
                       .open_chunks = 4,
                       .tensors = {"kernel", "bias"},
                       .tensor_count = 12,
                       .missing = {{MemberId{2}, "ada", absl::Milliseconds(3001)},
                                   {MemberId{5}, "bob", absl::Milliseconds(4002)}},
                       .open_for = absl::Milliseconds(10203),
                       .held_for = "server 1"};
  v1::RoundWait proto;
  ASSERT_TRUE(proto.ParseFromString(ToProto(sent).SerializeAsString()));
  EXPECT_EQ(UnsetIn(proto), std::set<std::string>());
  EXPECT_EQ(UnsetIn(proto.missing(0)), std::set<std::string>());
  EXPECT_EQ(proto.text(), ToString(sent));
  const RoundWait received = FromProto(proto);
  EXPECT_TRUE(received == sent) << ToString(received);
  EXPECT_EQ(ToString(received), ToString(sent));
}

}  // namespace
}  // namespace syncgrads
