#include "worker/nn/custom_losses.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads {

absl::StatusOr<std::unique_ptr<CustomLoss>> CustomLosses::Create(
    const std::string& kind, const CustomLossOptions& options) const {
  const auto it = factories_.find(kind);
  if (it != factories_.end()) return it->second(options);
  const std::string known = absl::StrJoin(
      factories_, ", ", [](std::string* out, const auto& one) { out->append(one.first); });
  return absl::InvalidArgumentError(absl::StrCat("loss.custom: unknown loss \"", kind, "\"; ",
                                                 known.empty()
                                                     ? "this program has no custom losses"
                                                     : absl::StrCat("this program has ", known)));
}

const CustomLosses& NoCustomLosses() {
  static const auto& none = *new CustomLosses();
  return none;
}

}  // namespace syncgrads
