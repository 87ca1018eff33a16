// Test assertions on absl::Status.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_STATUS_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_STATUS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

// Expects a status with this code whose message contains each of the texts.
template <typename Result>
void ExpectError(const Result& result, absl::StatusCode code,
                 std::initializer_list<std::string> texts) {
  const absl::Status status = StatusOf(result);
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& text : texts) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(text));
  }
}

#define SYNCGRADS_ASSERT_OK(expression) ASSERT_THAT(expression, ::syncgrads::IsOk())
#define SYNCGRADS_EXPECT_OK(expression) EXPECT_THAT(expression, ::syncgrads::IsOk())

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_STATUS_H_
