// Decodes arbitrary bytes as a list of strings. A list that is accepted is encoded in the same
// bytes.

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "worker/base/string_list.h"

namespace syncgrads::fuzz {

void Fuzz(absl::string_view input) {
  const absl::StatusOr<std::vector<std::string>> strings = DecodeStrings(input);
  RequireExplained(strings.status());
  Require(!strings.ok() || EncodeStrings(*strings) == input, "a list is encoded as it was decoded");
}

std::vector<std::string> Seeds() {
  return {EncodeStrings({}), EncodeStrings({"iris", "", std::string(300, 'x')}),
          EncodeStrings({std::string("a\0b", 3)})};
}

}  // namespace syncgrads::fuzz
