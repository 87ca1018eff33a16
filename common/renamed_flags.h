// Command-line flags that have been renamed. A program refuses the old name, and the error has the
// new one.

#ifndef SYNCGRADS_COMMON_RENAMED_FLAGS_H_
#define SYNCGRADS_COMMON_RENAMED_FLAGS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// Both names are without dashes.
struct RenamedFlag {
  absl::string_view old_name;
  absl::string_view new_name;
};

// Checks a command line, whose first element is the program, before the flags are parsed. Elements
// after "--" are not flags.
//
// Errors:
//   InvalidArgument  a flag has an old name: "--old is now --new"
absl::Status CheckRenamedFlags(absl::Span<char* const> command_line,
                               absl::Span<const RenamedFlag> renamed);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RENAMED_FLAGS_H_
