#include "worker/base/log_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

TEST(LogFileTest, ARecordThatCannotBeWrittenIsLeftOutAndReportedOnce) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  std::vector<std::string> warnings;
  auto log = LogFile::Open(path, "event log", LogFile::Existing::kContinued,
                           [&](const std::string& line) { warnings.push_back(line); });
  SYNCGRADS_ASSERT_OK(log);
  log->Write("first\n");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    const absl::Cleanup restore = [&] { setrlimit(RLIMIT_FSIZE, &before); };
    const rlimit small = {10, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    log->Write("second\n");  // four bytes of it fit
    log->Write("third\n");
  }
  log->Write("fourth\n");
  EXPECT_EQ(*ReadFile(path, 100), "first\nfourth\n");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "cannot write the event log " + path +
                             ": File too large; training continues, and what cannot be written is "
                             "left out");
}

TEST(LogFileTest, AnExistingFileIsContinuedOrReplaced) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("log", "before\n");
  for (const auto existing : {LogFile::Existing::kContinued, LogFile::Existing::kReplaced}) {
    auto log = LogFile::Open(path, "log", existing, nullptr);
    SYNCGRADS_ASSERT_OK(log);
    log->Write("now\n");
    EXPECT_EQ(*ReadFile(path, 100),
              existing == LogFile::Existing::kContinued ? "before\nnow\n" : "now\n");
  }
  ExpectError(LogFile::Open("/nowhere/log", "log", LogFile::Existing::kContinued, nullptr),
              absl::StatusCode::kPermissionDenied, {"cannot write the log /nowhere/log: No such"});
}

}  // namespace
}  // namespace syncgrads
