#include "server/core/rounds/served_chunk.h"

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"

namespace syncgrads::server {

absl::Status CheckSender(const Roster& roster, GroupId group, const PushHeader& header) {
  const Roster::Entry* sender = roster.Find(header.member);
  if (sender == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("member ", ToNumber(header.member), " is not in any epoch of this job"));
  }
  if (sender->member.incarnation != header.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", ToNumber(header.incarnation), " of worker \"", sender->member.name,
        "\" is not the current one, ", ToNumber(sender->member.incarnation), "; rejoin"));
  }
  if (sender->evicted) return sender->Refusal();
  if (sender->gone && !sender->HasData(group, header.round) &&
      !IsPlanted(PlantedBug::kOldIncarnationNotFenced)) {
    return absl::FailedPreconditionError(absl::StrCat("worker \"", sender->member.name,
                                                      "\" is no longer a member (",
                                                      sender->gone_reason, "); rejoin"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
