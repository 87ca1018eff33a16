#include "common/process_setup.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace syncgrads {
namespace {

// Closes the standard streams, and ends this process with 0 if SetUpProcess opens all of them.
[[noreturn]] void OpenAll() {
  for (int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(number);
  SetUpProcess();
  struct stat null = {};
  if (stat("/dev/null", &null) != 0) std::_Exit(1);
  for (int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    struct stat stream = {};
    if (fstat(number, &stream) != 0 || stream.st_rdev != null.st_rdev) std::_Exit(2);
  }
  std::_Exit(0);
}

TEST(ProcessSetupTest, StandardStreamsThatAreClosedBecomeDevNull) {
  EXPECT_EXIT(OpenAll(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace syncgrads
