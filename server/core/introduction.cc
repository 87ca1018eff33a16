#include "server/core/introduction.h"

#include "absl/strings/str_cat.h"
#include "common/protocol.h"

namespace syncgrads::server {

absl::Status CheckIntroduction(const Introduction& introduction) {
  if (introduction.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the worker speaks protocol version ",
                                                      introduction.protocol_version,
                                                      ", this server speaks ", kProtocolVersion));
  }
  if (introduction.job.empty()) return absl::InvalidArgumentError("a worker names no job");
  if (introduction.incarnation == Incarnation{}) {
    return absl::InvalidArgumentError("a worker's incarnation is 0");
  }
  if (introduction.world_size == 0) {
    return absl::InvalidArgumentError("a job of 0 workers; world_size must be set");
  }
  if (introduction.rank.has_value() && *introduction.rank >= introduction.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", *introduction.rank, " of a job of ",
                                                   introduction.world_size, " workers"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
