#include "server/core/rounds/served_chunk.h"

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"

namespace syncgrads::server {
namespace {

// Up to these sizes of a result, and of all contributions, closing a round takes less time than
// waking another thread for it, or not much more (docs/performance.md). A short first chunk
// (GroupSpec::first_chunk_bytes), which workers wait for, is smaller.
constexpr size_t kLittleResult = 256 << 10;
constexpr size_t kLittleContributions = 4 << 20;
// To send an answer takes about as long as to read this many bytes.
constexpr size_t kBytesOfAnswer = 4 << 10;

}  // namespace

CloseWork ServedChunk::WorkOf(size_t contributions) const {
  // The size of the result counts, not that of a payload, which may be encoded or empty.
  const size_t bytes = result_bytes();
  const bool is_little =
      bytes <= kLittleResult && contributions * (bytes + kBytesOfAnswer) <= kLittleContributions;
  return is_little ? CloseWork::kLittle : CloseWork::kMuch;
}

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
