// The protocol by which a worker and a server on its host share memory, over their unix socket.
// Each worker has one connection. The worker sends requests, and the server answers each request
// with one message: "ok", or the reason for a refusal.
//
//   first request  a PushChunk that has only the DataHello of the worker's data streams
//   offer REGION   with a descriptor: from now on, pushes may refer to this region
//   results GROUP  answered with a descriptor of the group's results: from now on, updates
//                  refer to a part of them
//
// When the connection ends, all regions are released, and so are the results that the worker is
// reading.

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
  uint32_t number;  // the number of the region (kOffer) or of the group (kResults)
};

// Returns the text of the request's message.
std::string ToText(const HandoverRequest& request);
// Returns the request; nullopt if the text is not a valid request.
std::optional<HandoverRequest> ParseHandover(absl::string_view text);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_HANDOVER_H_
