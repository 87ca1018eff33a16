// Lists of byte strings as one byte string, for what workers tell each other.

#ifndef SYNCGRADS_WORKER_BASE_STRING_LIST_H_
#define SYNCGRADS_WORKER_BASE_STRING_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// Each string as 8 bytes of its length, little-endian, and its bytes.
std::string EncodeStrings(absl::Span<const std::string> strings);

// DataLoss if `bytes` is not what EncodeStrings writes.
absl::StatusOr<std::vector<std::string>> DecodeStrings(absl::string_view bytes);

// A number as 8 bytes, little-endian; and back, from the first 8 bytes of
// `bytes`, which has them.
std::string EncodeNumber(uint64_t number);
uint64_t DecodeNumber(absl::string_view bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_STRING_LIST_H_
