#include "server/core/coordinator/generations.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

bool NoneIsOpen(const std::string&) { return false; }

class GenerationsTest : public ::testing::Test {
 protected:
  uint64_t Next(const std::string& name) {
    return ToNumber(generations_.Next(name, now_, NoneIsOpen));
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  Generations generations_{{.first = Generation{100}, .max_names = 20}};
};

TEST_F(GenerationsTest, EachJobOfANameHasALargerOne) {
  EXPECT_EQ(Next("a"), 100u);
  EXPECT_EQ(Next("a"), 101u);
  EXPECT_EQ(Next("b"), 100u);
  generations_.Restore("c", Generation{500}, now_);
  EXPECT_EQ(Next("c"), 501u);
  generations_.Restore("d", Generation{5}, now_);
  EXPECT_EQ(ToNumber(generations_.Newest("d")), 5u);
  EXPECT_EQ(Next("d"), 100u);
  EXPECT_EQ(ToNumber(generations_.Newest("e")), 0u);
}

TEST_F(GenerationsTest, ANameIsForgottenADayAfterItsJobIsOver) {
  for (int i = 0; i < 5; ++i) Next("old");
  now_ += absl::Hours(20);
  generations_.Close("old", now_);
  now_ += absl::Hours(23);
  Next("new");
  EXPECT_EQ(ToNumber(generations_.Newest("old")), 104u);
  now_ += absl::Hours(2);
  Next("new");
  EXPECT_THAT(generations_.All(), ElementsAre(Pair("new", Generation{101})));
  EXPECT_EQ(ToNumber(generations_.forgotten()), 104u);
  EXPECT_EQ(Next("old"), 105u) << "larger than before all the same";
}

TEST_F(GenerationsTest, TheNameOfAnOpenJobIsNot) {
  Next("open");
  now_ += absl::Hours(1000);
  generations_.Next("other", now_, [](const std::string& name) { return name == "open"; });
  EXPECT_EQ(ToNumber(generations_.Newest("open")), 100u);
}

TEST_F(GenerationsTest, OfTooManyNamesThoseUsedLongestAgoAreForgotten) {
  for (int i = 0; i < 1000; ++i) {
    now_ += absl::Seconds(1);
    EXPECT_GT(Next(absl::StrCat("job-", i)), ToNumber(generations_.forgotten())) << i;
    EXPECT_LE(generations_.All().size(), 20u);
  }
  EXPECT_NE(ToNumber(generations_.Newest("job-999")), 0u);
  EXPECT_EQ(ToNumber(generations_.Newest("job-0")), 0u);
  EXPECT_GE(generations_.All().size(), 15u);
}

}  // namespace
}  // namespace syncgrads::server
