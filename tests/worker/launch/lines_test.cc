#include "worker/launch/lines.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LinesTest, GivesLinesWhenTheyAreComplete) {
  Lines lines;
  EXPECT_THAT(lines.Add("on"), IsEmpty());
  EXPECT_THAT(lines.Add("e\ntwo\nthr"), ElementsAre("one", "two"));
  EXPECT_THAT(lines.Add("ee\n"), ElementsAre("three"));
  EXPECT_EQ(lines.Rest(), std::nullopt);
}

TEST(LinesTest, KeepsEmptyLines) {
  Lines lines;
  EXPECT_THAT(lines.Add("\n\na\n"), ElementsAre("", "", "a"));
}

TEST(LinesTest, GivesTheUnfinishedRestOnce) {
  Lines lines;
  lines.Add("rest");
  EXPECT_EQ(lines.Rest(), "rest");
  EXPECT_EQ(lines.Rest(), std::nullopt);
}

TEST(LinesTest, ARedrawnLineIsWhatWasDrawnLast) {
  Lines lines;
  EXPECT_THAT(lines.Add("\rstep 1\x1b[K\rstep 2\x1b[K"), IsEmpty());
  EXPECT_EQ(lines.Redrawn(), "step 2");
  EXPECT_THAT(lines.Add("\rdone\x1b[K\n"), ElementsAre("done"));
  EXPECT_EQ(lines.Redrawn(), "");
}

TEST(LinesTest, ABarMayDrawTheReturnBeforeOrAfter) {
  Lines lines;
  lines.Add("step 1\r");
  EXPECT_EQ(lines.Redrawn(), "step 1");
  lines.Add("step 2\r");
  EXPECT_EQ(lines.Redrawn(), "step 2");
  EXPECT_THAT(lines.Add("\n"), ElementsAre("step 2"));
}

TEST(LinesTest, ALineThatIsOnlyUnfinishedIsNotRedrawn) {
  Lines lines;
  lines.Add("half a l");
  EXPECT_EQ(lines.Redrawn(), "");
}

TEST(LinesTest, CutsALineWithoutEnd) {
  Lines lines;
  EXPECT_THAT(lines.Add(std::string(3 * Lines::kLongestLine + 1, 'x')), SizeIs(3));
  EXPECT_EQ(lines.Rest(), "x");
}

}  // namespace
}  // namespace syncgrads
