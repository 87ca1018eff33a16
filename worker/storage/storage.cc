#include "worker/storage/storage.h"

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "worker/base/gzip.h"

namespace syncgrads {

bool IsMissing(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status);
}

absl::StatusOr<std::string> ReadDecompressed(const Storage& storage, const std::string& path,
                                             size_t max_bytes) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::string contents, storage.Read(path, max_bytes));
  if (!absl::EndsWith(path, ".gz")) return contents;
  return Gunzip(contents, storage.NameOf(path), max_bytes);
}

}  // namespace syncgrads
