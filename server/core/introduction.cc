#include "server/core/introduction.h"

#include <algorithm>

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
  const uint32_t world_size = introduction.world_size;
  const uint32_t max_workers = introduction.max_workers;
  if (max_workers == 0 && introduction.min_workers > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_workers is ", introduction.min_workers, " in a job without max_workers"));
  }
  if (max_workers > 0 && (introduction.min_workers > world_size || world_size > max_workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", world_size, " workers that has at least ",
                     introduction.min_workers, " and at most ", max_workers));
  }
  const uint32_t ranks = std::max(world_size, max_workers);
  if (introduction.rank.has_value() && *introduction.rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *introduction.rank, " of a job of ", ranks, " workers"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
