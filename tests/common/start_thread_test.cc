#include "common/start_thread.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/common/expect_error.h"
#include "tests/testing/no_threads.h"

namespace syncgrads {
namespace {

TEST(StartThreadTest, RunsTheFunctionOrSaysThatThereIsNoThread) {
  int runs = 0;
  std::thread thread;
  ASSERT_TRUE(StartThread("a test", thread, [&runs] { ++runs; }).ok());
  thread.join();
  {
    const testing::NoThreads no_threads;
    ExpectError(StartThread("a test", thread, [&runs] { ++runs; }),
                absl::StatusCode::kResourceExhausted, {"thread for a test"});
  }
  EXPECT_FALSE(thread.joinable());
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace syncgrads
