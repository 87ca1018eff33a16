// Limits on names that come from outside: of jobs, workers, hosts, groups, tensors, and paths of
// checkpoints. Names are written to logs, terminals and the plan, so they must be short and
// printable.

#ifndef SYNCGRADS_COMMON_NAMES_H_
#define SYNCGRADS_COMMON_NAMES_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Maximum length, in bytes of UTF-8, of the name of a job, a worker, a host or a group.
inline constexpr size_t kMaxNameBytes = 255;
// Maximum length of a tensor's name. Tensor names contain the path of a module, so they are longer.
inline constexpr size_t kMaxTensorNameBytes = 512;
// Maximum total length of all tensor names of a group: 100,000 names of 80 bytes fit.
inline constexpr size_t kMaxGroupTextBytes = 8 << 20;
// Maximum length of a checkpoint's path; equals PATH_MAX.
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxTokenBytes = 1024;
// Maximum length of an error message or a reason. Longer text is cut.
inline constexpr size_t kMaxReasonBytes = 1024;

// Returns whether the text is valid UTF-8 without control characters: none below U+0020, none from
// U+007F to U+009F, neither U+2028 nor U+2029, which end a line, and none that change the direction
// of a text: U+061C, U+200E, U+200F, U+202A to U+202E, and U+2066 to U+2069.
bool IsPrintable(absl::string_view text);

// Returns the first `most` bytes of `text`, with each byte that is not part of a printable
// character replaced by \xNN. Appends "..." if the text is longer.
std::string Printable(absl::string_view text, size_t most = kMaxReasonBytes);

// Checks the length and the characters of a name. An empty name passes.
//
// Errors (the message begins with `what`, for example "the job's name", and quotes the name's
// start):
//   InvalidArgument  the name is longer than `most` bytes, which the message states together with
//                    the name's length; or it is not printable
absl::Status CheckName(absl::string_view what, absl::string_view name, size_t most = kMaxNameBytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NAMES_H_
