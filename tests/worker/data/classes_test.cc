#include "worker/data/classes.h"

#include <gtest/gtest.h>

#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

TEST(ClassesTest, NamesAreNumberedInByteOrder) {
  const auto classes = Classes::Find({{"b", "t:2"}, {"a", "t:3"}, {"b", "u:2"}, {"10", "u:9"}}, 3);
  SYNCGRADS_ASSERT_OK(classes);
  EXPECT_EQ(classes->names(), (std::vector<std::string>{"10", "a", "b"}));
  EXPECT_EQ(*classes->NumberOf({"b", ""}, 3), 2u);
  EXPECT_EQ(classes->NameOf(1), "a");
}

TEST(ClassesTest, WholeNumbersAreTheirOwnClasses) {
  const auto classes = Classes::Find({{"2", "t:2"}, {"0", "t:3"}, {"1.0", "t:4"}}, 3);
  SYNCGRADS_ASSERT_OK(classes);
  EXPECT_TRUE(classes->names().empty());
  EXPECT_EQ(*classes->NumberOf({"1.0", ""}, 3), 1u);
  EXPECT_EQ(classes->NameOf(1), "1");
}

TEST(ClassesTest, AClassOutOfRangeIsNamedWithItsPlace) {
  ExpectError(Classes::Find({{"0", "t:2"}, {"3", "t:7"}}, 3), absl::StatusCode::kInvalidArgument,
              {"t:7: class \"3\"", "3 classes"});
  ExpectError(Classes::Find({{"a", "t:2"}, {"b", "t:3"}, {"c", "t:4"}}, 2),
              absl::StatusCode::kInvalidArgument,
              {"t:4: class \"c\"", "3 classes", "outputs for 2"});
}

TEST(ClassesTest, AClassThatTheModelDoesNotKnowIsNamed) {
  ExpectError(Classes::Named({"a", "b"}).NumberOf({"c", "t:9"}, 2),
              absl::StatusCode::kInvalidArgument, {"t:9: class \"c\""});
}

}  // namespace
}  // namespace syncgrads
