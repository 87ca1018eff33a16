// Checks single values of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_VALUES_H_
#define SYNCGRADS_WORKER_JOB_CHECK_VALUES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/job/field.h"

namespace syncgrads {

// The most threads of one kind that a worker has.
inline constexpr uint32_t kMostThreads = 4096;

// InvalidArgument unless `known`: the text format accepts any number for an enum.
absl::Status CheckEnum(const Field& field, absl::string_view name, int value, bool known);

// InvalidArgument unless `value` is from 1 to `largest`.
absl::Status CheckCount(const Field& field, absl::string_view name, uint32_t value,
                        uint32_t largest);

// InvalidArgument unless `value`, a number of threads, is at most kMostThreads.
absl::Status CheckThreads(const Field& field, absl::string_view name, uint32_t value);

// InvalidArgument unless `value` is from 0 to 1.
absl::Status CheckFraction(const Field& field, absl::string_view name, double value);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_VALUES_H_
