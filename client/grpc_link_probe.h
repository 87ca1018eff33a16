// How fast the link to a server is.

#ifndef SYNCGRADS_CLIENT_GRPC_LINK_PROBE_H_
#define SYNCGRADS_CLIENT_GRPC_LINK_PROBE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace syncgrads::client {

// Bytes a second, by the fastest of a few messages of 256 KiB: more than the truth where
// the link lets a burst pass, and less where a message costs more than its bytes, so that it
// tells slow links from others and no more. Waits for `timeout` at most; of a link that
// takes nothing in that time it says what it takes at most. Nothing if the server does not
// answer.
std::optional<double> MeasureGrpcLink(const std::string& address,
                                      const std::string& congestion_control,
                                      absl::Duration timeout);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_LINK_PROBE_H_
