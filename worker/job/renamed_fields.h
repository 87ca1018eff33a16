// Fields and enum values of the job file that have been renamed. A job file with an old name is
// refused, and the error has the new one.

#ifndef SYNCGRADS_WORKER_JOB_RENAMED_FIELDS_H_
#define SYNCGRADS_WORKER_JOB_RENAMED_FIELDS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

struct RenamedField {
  // A message type, without its package.
  absl::string_view message;
  absl::string_view old_name;
  absl::string_view new_name;
};

struct RenamedValue {
  // The name of a field whose type is an enum.
  absl::string_view field;
  absl::string_view old_name;
  absl::string_view new_name;
};

absl::Span<const RenamedField> RenamedFields();
absl::Span<const RenamedValue> RenamedValues();

// Takes an error of protobuf's text parser. Returns "OLD is now NEW" if the error is that a message
// has no field, or an enum no value, with an old name, and otherwise the error itself.
std::string WithNewName(absl::string_view error);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_RENAMED_FIELDS_H_
