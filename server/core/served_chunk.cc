#include "server/core/served_chunk.h"

#include "absl/strings/str_cat.h"

namespace syncgrads::server {

absl::Status CheckSender(const Roster& roster, GroupId group, const PushHeader& header) {
  const Roster::Entry* sender = roster.Find(header.member);
  if (sender == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("member ", ToNumber(header.member), " is in no epoch of this job"));
  }
  if (sender->member.incarnation != header.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", ToNumber(header.incarnation), " of worker \"", sender->member.name,
        "\" is not the present one, ", ToNumber(sender->member.incarnation), "; rejoin"));
  }
  if (sender->gone && !sender->HasData(group, header.round)) {
    return absl::FailedPreconditionError(absl::StrCat("worker \"", sender->member.name,
                                                      "\" is no member any more (",
                                                      sender->gone_reason, "); rejoin"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
