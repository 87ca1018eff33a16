#include "common/renamed_flags.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncgrads {

absl::Status CheckRenamedFlags(absl::Span<char* const> command_line,
                               absl::Span<const RenamedFlag> renamed) {
  for (size_t i = 1; i < command_line.size(); ++i) {
    absl::string_view name = command_line[i];
    if (name == "--") break;
    // Abseil accepts one dash in place of two.
    if (!absl::ConsumePrefix(&name, "-")) continue;
    absl::ConsumePrefix(&name, "-");
    name = name.substr(0, name.find('='));
    for (const RenamedFlag& flag : renamed) {
      if (name != flag.old_name) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag.old_name, " is now --", flag.new_name));
    }
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
