#include "worker/data/row_source.h"

#include "worker/storage/storage.h"

namespace syncgrads {

bool IsDamagedImage(const absl::Status& status) {
  return absl::IsDataLoss(status) || IsMissing(status);
}

}  // namespace syncgrads
