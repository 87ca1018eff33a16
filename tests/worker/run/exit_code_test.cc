#include "worker/run/exit_code.h"

#include <gtest/gtest.h>

namespace syncgrads {
namespace {

int CodeOf(absl::StatusCode code) { return ExitCodeOf(absl::Status(code, ""), absl::OkStatus()); }

TEST(ExitCodeTest, IsZeroOnlyForSuccess) {
  EXPECT_EQ(CodeOf(absl::StatusCode::kOk), 0);
  for (int code = 1; code <= 16; ++code) {
    EXPECT_NE(CodeOf(static_cast<absl::StatusCode>(code)), 0) << code;
  }
}

TEST(ExitCodeTest, MistakesArePermanentAndOutagesRetryable) {
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                          absl::StatusCode::kPermissionDenied, absl::StatusCode::kAlreadyExists,
                          absl::StatusCode::kDataLoss, absl::StatusCode::kInternal}) {
    EXPECT_LT(CodeOf(code), 128) << absl::StatusCodeToString(code);
  }
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded,
                          absl::StatusCode::kAborted, absl::StatusCode::kResourceExhausted}) {
    EXPECT_GE(CodeOf(code), 128) << absl::StatusCodeToString(code);
  }
}

TEST(ExitCodeTest, AStopIsTheCodeOfItsSignal) {
  EXPECT_EQ(CodeOf(absl::StatusCode::kCancelled), 143);
}

TEST(ExitCodeTest, AMembershipThatIsOverIsRetryable) {
  const absl::Status failed = absl::FailedPreconditionError("expelled");
  EXPECT_EQ(ExitCodeOf(failed, absl::OkStatus()), 4);
  EXPECT_EQ(ExitCodeOf(failed, failed), 204);
}

TEST(ExitCodeTest, OfSeveralWorkersTheOneThatSaysMostCounts) {
  EXPECT_EQ(WorstExitCode({0, 0}), 0);
  EXPECT_EQ(WorstExitCode({0, 143, 0}), 143);
  EXPECT_EQ(WorstExitCode({143, 201, 200}), 201);
  EXPECT_EQ(WorstExitCode({204, 0, 8, 2}), 8);
}

}  // namespace
}  // namespace syncgrads
