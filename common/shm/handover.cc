#include "common/shm/handover.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncgrads {
namespace {

constexpr absl::string_view kOffer = "offer ";
constexpr absl::string_view kResults = "results ";

}  // namespace

std::string ToText(const HandoverRequest& request) {
  return absl::StrCat(request.kind == HandoverRequest::Kind::kOffer ? kOffer : kResults,
                      request.number);
}

std::optional<HandoverRequest> ParseHandover(absl::string_view text) {
  HandoverRequest request{HandoverRequest::Kind::kOffer, 0};
  if (absl::ConsumePrefix(&text, kResults)) {
    request.kind = HandoverRequest::Kind::kResults;
  } else if (!absl::ConsumePrefix(&text, kOffer)) {
    return std::nullopt;
  }
  if (!absl::SimpleAtoi(text, &request.number)) return std::nullopt;
  return request;
}

}  // namespace syncgrads
