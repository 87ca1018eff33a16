// CRC-32C (Castagnoli), as RFC 3720 and TFRecord files have it.

#ifndef SYNCGRADS_WORKER_BASE_CRC32C_H_
#define SYNCGRADS_WORKER_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncgrads {

uint32_t Crc32c(absl::string_view bytes);

// As TFRecord files store it, so that a checksum of bytes that hold checksums is sound.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_CRC32C_H_
