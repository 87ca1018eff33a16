// Early returns for absl::Status and absl::StatusOr.

#ifndef SYNCGRADS_COMMON_STATUS_MACROS_H_
#define SYNCGRADS_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expression` from the calling function if it is not OK.
#define SYNCGRADS_RETURN_IF_ERROR(expression)            \
  do {                                                   \
    absl::Status syncgrads_status = (expression);        \
    if (!syncgrads_status.ok()) return syncgrads_status; \
  } while (false)

#define SYNCGRADS_MACRO_JOIN_INNER(a, b) a##b
#define SYNCGRADS_MACRO_JOIN(a, b) SYNCGRADS_MACRO_JOIN_INNER(a, b)

// Assigns the value of a StatusOr to `target`, which may declare a variable. If it has no value,
// returns its status from the calling function.
#define SYNCGRADS_ASSIGN_OR_RETURN(target, expression)                                        \
  SYNCGRADS_ASSIGN_OR_RETURN_INNER(SYNCGRADS_MACRO_JOIN(syncgrads_result_, __LINE__), target, \
                                   expression)
#define SYNCGRADS_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return std::move(result).status();               \
  target = *std::move(result)

#endif  // SYNCGRADS_COMMON_STATUS_MACROS_H_
