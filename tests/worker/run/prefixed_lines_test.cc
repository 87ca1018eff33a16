#include "worker/run/prefixed_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncgrads {
namespace {

TEST(PrefixedLinesTest, ALineIsWrittenWhenItIsWhole) {
  std::ostringstream out;
  Mutex mutex;
  {
    PrefixedLines lines("[a] ", out, mutex);
    lines << "step " << 1 << std::flush;
    EXPECT_EQ(out.str(), "");
    lines << ", loss\n\nrest";
    EXPECT_EQ(out.str(), "[a] step 1, loss\n[a] \n");
  }
  EXPECT_EQ(out.str(), "[a] step 1, loss\n[a] \n[a] rest\n");
}

TEST(PrefixedLinesTest, LinesOfSeveralThreadsAreNotMixed) {
  constexpr int kThreads = 4, kLines = 200;
  std::ostringstream out;
  Mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      PrefixedLines lines(absl::StrCat("[", t, "] "), out, mutex);
      for (int i = 0; i < kLines; ++i)
        lines << "a"
              << "b"
              << "c" << std::endl;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), kThreads * kLines);
  EXPECT_THAT(lines, testing::Each(testing::MatchesRegex("\\[[0-3]\\] abc")));
}

}  // namespace
}  // namespace syncgrads
