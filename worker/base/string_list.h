// Encodes lists of byte strings as one byte string, for messages between workers.

#ifndef SYNCGRADS_WORKER_BASE_STRING_LIST_H_
#define SYNCGRADS_WORKER_BASE_STRING_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// Encodes each string as its length (8 bytes, little-endian) and its bytes.
std::string EncodeStrings(absl::Span<const std::string> strings);

// Decodes the result of EncodeStrings. DataLoss if `bytes` is malformed.
absl::StatusOr<std::vector<std::string>> DecodeStrings(absl::string_view bytes);

// Encode and decode a number as 8 bytes, little-endian. DecodeNumber reads the first 8 bytes of
// `bytes`, which must be at least that long.
std::string EncodeNumber(uint64_t number);
uint64_t DecodeNumber(absl::string_view bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_STRING_LIST_H_
