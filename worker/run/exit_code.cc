#include "worker/run/exit_code.h"

namespace syncgrads {
namespace {

constexpr int kFirstRetryable = 128;
constexpr int kStopped = 143;

int Weight(int code) {
  if (code == 0) return 0;
  if (code == kStopped) return 1;
  return code >= kFirstRetryable ? 2 : 3;
}

}  // namespace

int ExitCodeOf(const absl::Status& status, const absl::Status& membership) {
  if (status.ok()) return 0;
  if (absl::IsCancelled(status)) return kStopped;
  if (!membership.ok()) return 204;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kNotFound:
      return 3;
    case absl::StatusCode::kFailedPrecondition:
      return 4;
    case absl::StatusCode::kPermissionDenied:
      return 5;
    case absl::StatusCode::kUnimplemented:
      return 6;
    case absl::StatusCode::kAlreadyExists:
      return 7;
    case absl::StatusCode::kDataLoss:
      return 8;
    case absl::StatusCode::kUnavailable:
      return 200;
    case absl::StatusCode::kDeadlineExceeded:
      return 201;
    case absl::StatusCode::kAborted:
      return 202;
    case absl::StatusCode::kResourceExhausted:
      return 203;
    default:
      return 1;
  }
}

int WorstExitCode(absl::Span<const int> codes) {
  int worst = 0;
  for (const int code : codes) {
    if (Weight(code) > Weight(worst)) worst = code;
  }
  return worst;
}

}  // namespace syncgrads
