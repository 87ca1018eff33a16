// CRC-32C (Castagnoli), as in RFC 3720 and in TFRecord files.

#ifndef SYNCGRADS_WORKER_BASE_CRC32C_H_
#define SYNCGRADS_WORKER_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncgrads {

uint32_t Crc32c(absl::string_view bytes);

// Returns the checksum as TFRecord files store it. The masking makes checksums sound for bytes
// that contain checksums.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_CRC32C_H_
