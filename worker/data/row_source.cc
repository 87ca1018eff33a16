#include "worker/data/row_source.h"

namespace syncgrads {

bool IsDamagedImage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status);
}

}  // namespace syncgrads
