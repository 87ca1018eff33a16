// Decompresses gzip files.

#ifndef SYNCGRADS_WORKER_BASE_GZIP_H_
#define SYNCGRADS_WORKER_BASE_GZIP_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Decompresses `compressed` (RFC 1952, one or more members). `path` is for errors.
//
// Errors:
//   DataLoss         the data is damaged or cut short
//   InvalidArgument  the decompressed data is longer than `max_bytes`
absl::StatusOr<std::string> Gunzip(absl::string_view compressed, const std::string& path,
                                   size_t max_bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_GZIP_H_
