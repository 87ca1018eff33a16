// Parses arbitrary bytes as the manifest of a checkpoint. A manifest that is accepted can be
// written again, and then is equal. If the first byte of the input is odd, the rest is the
// described object alone, and the target adds its checksum: otherwise hardly any damaged manifest
// would pass.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/worker/checkpoint/example_manifest.h"
#include "worker/checkpoint/manifest.h"

namespace syncgrads::fuzz {
namespace {

using nlohmann::json;

std::string WithChecksum(absl::string_view body) {
  const json parsed = json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const std::string canonical =
      parsed.is_object() && body.size() < 4096 ? parsed.dump() : std::string(body);
  return absl::StrCat("{\"checkpoint\":", body, ",\"xxh3\":\"",
                      absl::Hex(ChecksumOf({canonical}), absl::kZeroPad16), "\"}");
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const bool adds_checksum = choices.Byte() % 2 == 1;
  const absl::string_view rest = choices.Rest();
  const std::string text = adds_checksum ? WithChecksum(rest) : std::string(rest);
  const absl::StatusOr<Manifest> manifest = ParseManifest(text, "m");
  RequireExplained(manifest.status());
  if (!manifest.ok()) return;
  const absl::StatusOr<Manifest> again = ParseManifest(ToJson(*manifest), "m");
  Require(again.ok(), "a manifest that is written again is accepted");
  Require(*again == *manifest, "a manifest is written as it was read");
}

std::vector<std::string> Seeds() {
  return {
      Encoded(0, 1) + ToJson(ExampleManifest()),
      Encoded(0, 1) + ToJson(Manifest()),
      Encoded(1, 1) + json::parse(ToJson(ExampleManifest()))["checkpoint"].dump(),
      Encoded(1, 1) + json::parse(ToJson(Manifest()))["checkpoint"].dump(),
  };
}

}  // namespace syncgrads::fuzz
