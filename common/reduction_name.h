// The name of a reduction, for messages and for the names of collective groups.

#ifndef SYNCGRADS_COMMON_REDUCTION_NAME_H_
#define SYNCGRADS_COMMON_REDUCTION_NAME_H_

#include "absl/strings/string_view.h"
#include "common/update_rule.h"

namespace syncgrads {

// Returns "average", "sum", "min", "max" or "product"; "unknown" for any other value.
constexpr absl::string_view NameOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kAverage:
      return "average";
    case Reduction::kSum:
      return "sum";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kProduct:
      return "product";
  }
  return "unknown";
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_REDUCTION_NAME_H_
