#include "server/core/plan/check_hello.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/names.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"

namespace syncgrads::server {

absl::Status CheckHello(const Hello& hello) {
  if (hello.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the worker uses protocol version ",
                                                      hello.protocol_version, ", this server uses ",
                                                      kProtocolVersion));
  }
  if (hello.job.empty()) return absl::InvalidArgumentError("the job's name is empty");
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the job's name", hello.job));
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the worker's name", hello.name));
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the worker's host", hello.host));
  if (hello.token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the job's token has ", hello.token.size(),
                                                   " bytes, at most ", kMaxTokenBytes,
                                                   " are allowed"));
  }
  if (hello.member_secret.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the worker's secret has ",
                                                   hello.member_secret.size(), " bytes, at most ",
                                                   kMaxNameBytes, " are allowed"));
  }
  if (hello.incarnation == Incarnation{}) {
    return absl::InvalidArgumentError("the worker's incarnation is 0, must be positive");
  }
  if (hello.world_size == 0) {
    return absl::InvalidArgumentError("world_size is 0, must be at least 1");
  }
  const uint32_t world_size = hello.world_size;
  const uint32_t max_workers = hello.max_workers;
  if (max_workers == 0 && hello.min_workers > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_workers is ", hello.min_workers, " in a job without max_workers"));
  }
  if (max_workers > 0 && (hello.min_workers > world_size || world_size > max_workers)) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", world_size,
                                                   ", must be from min_workers ", hello.min_workers,
                                                   " to max_workers ", max_workers));
  }
  const uint32_t ranks = std::max(world_size, max_workers);
  if (hello.rank.has_value() && *hello.rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *hello.rank, " is out of range in a job of ", ranks, " workers"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
