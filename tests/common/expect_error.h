// Assertions about absl::Status.

#ifndef SYNCGRADS_TESTS_COMMON_EXPECT_ERROR_H_
#define SYNCGRADS_TESTS_COMMON_EXPECT_ERROR_H_

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// Expects an error with this code and a message that contains each of `parts`.
template <typename Result>
void ExpectError(const Result& result, absl::StatusCode code,
                 std::initializer_list<std::string> parts) {
  const absl::Status status = StatusOf(result);
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part));
  }
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_EXPECT_ERROR_H_
