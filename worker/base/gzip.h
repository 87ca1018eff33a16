// Files that may be compressed.

#ifndef SYNCGRADS_WORKER_BASE_GZIP_H_
#define SYNCGRADS_WORKER_BASE_GZIP_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// What `compressed` (RFC 1952, one or more members) holds; `path` is for errors.
//
// Errors:
//   DataLoss         it is damaged or cut short
//   InvalidArgument  it holds more than `max_bytes`
absl::StatusOr<std::string> Gunzip(absl::string_view compressed, const std::string& path,
                                   size_t max_bytes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_GZIP_H_
