#include "common/serial_thread.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

TEST(SerialThreadTest, RunsInOrderAlsoWhatClosuresGiveAndWhatWaitsAtTheEnd) {
  std::vector<int> run;  // accessed by one thread only
  SerialThread thread;
  for (int i = 0; i < 100; ++i) thread.Run([&run, i] { run.push_back(i); });
  thread.Run([&] {
    run.push_back(100);
    thread.Run([&run] { run.push_back(101); });
  });
  thread.Finish();
  ASSERT_EQ(run.size(), 102u);
  for (int i = 0; i < 102; ++i) EXPECT_EQ(run[i], i);
  thread.Run([] { ADD_FAILURE() << "it is finished"; });
}

}  // namespace
}  // namespace syncgrads
