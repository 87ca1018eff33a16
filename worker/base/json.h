// Pieces of JSON.

#ifndef SYNCGRADS_WORKER_BASE_JSON_H_
#define SYNCGRADS_WORKER_BASE_JSON_H_

#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

// The text in quotes, with what has to be escaped escaped.
std::string JsonString(absl::string_view text);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_JSON_H_
