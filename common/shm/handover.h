// What a worker and a server on its host say to each other over their unix
// socket. One connection a worker; the worker asks, the server answers each
// request with one message: "ok", or words that say why not.
//
//   first          the DataHello of the worker's data streams
//   offer REGION   with a descriptor: pushes may name this region from now on
//   results GROUP  answered with a descriptor of the group's results; from then
//                  on updates say where they lie
//
// The connection's end gives up everything: regions, and results being read.

#ifndef SYNCGRADS_COMMON_SHM_HANDOVER_H_
#define SYNCGRADS_COMMON_SHM_HANDOVER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

inline constexpr absl::string_view kHandoverOk = "ok";

struct HandoverRequest {
  enum class Kind { kOffer, kResults };
  Kind kind;
  uint32_t number;  // of the region, or of the group
};

std::string ToText(const HandoverRequest& request);
// None if the text is no request.
std::optional<HandoverRequest> ParseHandover(absl::string_view text);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_HANDOVER_H_
