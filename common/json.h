// Writes JSON.

#ifndef SYNCGRADS_COMMON_JSON_H_
#define SYNCGRADS_COMMON_JSON_H_

#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Returns `text` as a JSON string, in quotes and escaped.
std::string JsonString(absl::string_view text);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_JSON_H_
