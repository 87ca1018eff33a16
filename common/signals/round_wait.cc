#include "common/signals/round_wait.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace syncgrads {
namespace {

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(duration));
}

}  // namespace

std::string ToString(const RoundWait& wait) {
  if (wait.missing.empty() && !wait.held_for.empty()) {
    return absl::StrCat("step ", ToNumber(wait.round), " of group \"", wait.group_name,
                        "\" has waited ", Seconds(wait.open_for), ": ", wait.held_for);
  }
  const std::string workers =
      absl::StrJoin(wait.missing, ", ", [](std::string* out, const RoundWait::Missing& missing) {
        absl::StrAppend(out, "\"", missing.name, "\" (last message ", Seconds(missing.silent),
                        " ago)");
      });
  const std::string tensors =
      absl::StrJoin(wait.tensors, ", ", [](std::string* out, const std::string& tensor) {
        absl::StrAppend(out, "\"", tensor, "\"");
      });
  const std::string more =
      wait.tensor_count > wait.tensors.size()
          ? absl::StrCat(" and ", wait.tensor_count - wait.tensors.size(), " more")
          : "";
  return absl::StrCat("step ", ToNumber(wait.round), " of group \"", wait.group_name,
                      "\" has waited ", Seconds(wait.open_for), " for worker",
                      wait.missing.size() == 1 ? " " : "s ", workers, " to contribute tensor",
                      wait.tensor_count == 1 ? " " : "s ", tensors, more);
}

}  // namespace syncgrads
