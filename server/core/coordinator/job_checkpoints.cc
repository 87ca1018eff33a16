#include "server/core/coordinator/job_checkpoints.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/names.h"

namespace syncgrads::server {

absl::StatusOr<uint32_t> JobCheckpoints::Request(const Epoch& epoch) const {
  uint32_t requested = 0;
  for (const Member& one : epoch.members) {
    const JobMember* const member = members_.Find(one.id);
    if (member == nullptr || member->link == nullptr) continue;
    members_.Send(*member, CheckpointRequested{});
    ++requested;
  }
  if (requested > 0) return requested;
  return absl::FailedPreconditionError(
      absl::StrCat(job_.Quoted(), " has no worker that is training"));
}

void JobCheckpoints::Report(MemberId id, const CheckpointReport& report) {
  const JobMember* const member = members_.Find(id);
  if (member == nullptr) return;
  const std::string& name = member->member.name;
  const std::string worker = absl::StrCat(job_.Quoted(), ": worker \"", name, "\" ");
  if (report.path.ok()) {
    ++count_.written;
    count_.last_step = report.step;
    count_.last_path = Printable(*report.path, kMaxPathBytes);
    return journal_.Record(
        {.kind = EventKind::kCheckpoint,
         .job = job_.name(),
         .worker = name,
         .text = absl::StrCat(worker, "has written the checkpoint after step ", report.step),
         .detail = absl::StrCat(" to ", count_.last_path)});
  }
  ++count_.failed;
  count_.last_error = Printable(report.path.status().message());
  journal_.Record(
      {.kind = EventKind::kCheckpointFailed,
       .job = job_.name(),
       .worker = name,
       .text = absl::StrCat(worker, "could not write the checkpoint after step ", report.step),
       .detail = absl::StrCat(": ", count_.last_error),
       .level = LogLevel::kWarning});
}

}  // namespace syncgrads::server
