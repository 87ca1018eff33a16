// Parses arbitrary bytes as a request of a worker to share memory with a server. A request that is
// accepted can be written again, and then is the same request.

#include <string>
#include <vector>

#include "common/shm/handover.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {

void Fuzz(absl::string_view input) {
  const std::optional<HandoverRequest> request = ParseHandover(input);
  if (!request.has_value()) return;
  const std::optional<HandoverRequest> again = ParseHandover(ToText(*request));
  Require(again.has_value(), "a request that is written again is accepted");
  Require(again->kind == request->kind && again->number == request->number,
          "a request is written as it was read");
}

std::vector<std::string> Seeds() {
  return {ToText({HandoverRequest::Kind::kOffer, 0}), ToText({HandoverRequest::Kind::kOffer, ~0u}),
          ToText({HandoverRequest::Kind::kResults, 17})};
}

}  // namespace syncgrads::fuzz
