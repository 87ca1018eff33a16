#include "server/core/membership/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {
namespace {

bool HasSecretOf(const JobMember& member, const Hello& hello) {
  return MatchesHash(member.member.secret_hash, hello.member_secret);
}

}  // namespace

absl::StatusOr<Admission::Decision> Admission::Decide(const Hello& hello) const {
  const JobMember* const known = members_.FindIncarnation(hello.incarnation);
  // A worker that waits for its Farewell may reconnect to a job that is closed.
  const bool is_leaving = known != nullptr && known->awaits_farewell;
  if (plan_.closed() && !is_leaving) {
    return absl::UnavailableError(absl::StrCat(job_.Quoted(), " is being closed"));
  }
  if (known != nullptr && !known->member.secret_hash.empty()) {
    // The member has shown the job's token, or what rules demand, when it was admitted.
    if (!HasSecretOf(*known, hello)) {
      return absl::PermissionDeniedError(
          absl::StrCat("wrong secret for worker \"", known->member.name, "\" of ", job_.Quoted()));
    }
  } else {
    SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(hello.token));
  }
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckTerms(hello));
  SYNCGRADS_RETURN_IF_ERROR(CheckNotEvicted(hello));
  Decision decision;
  if (known != nullptr) {
    decision.returning = known->member.id;
    return decision;
  }
  if (hello.generation != Generation{}) {
    return absl::FailedPreconditionError(absl::StrCat("incarnation ", ToNumber(hello.incarnation),
                                                      " is no longer a member of ", job_.Quoted(),
                                                      "; rejoin"));
  }
  for (const auto& [id, member] : members_.all()) {
    if (member.gone) continue;
    const bool same_name = !hello.name.empty() && member.member.name == hello.name;
    const bool same_rank = hello.rank.has_value() && member.asked_rank == hello.rank;
    // That worker has lost its stream, and this one replaces it. A job that is not elastic
    // allows this only before its start.
    if ((same_name || same_rank) && member.link == nullptr &&
        (!epochs_.has_begun() || job_.is_elastic())) {
      decision.superseded.push_back(id);
      continue;
    }
    if (same_name || same_rank) {
      return absl::AlreadyExistsError(absl::StrCat(
          same_name ? absl::StrCat("name \"", hello.name, "\"")
                    : absl::StrCat("rank ", *hello.rank),
          " of ", job_.Quoted(), " is held by a live worker: \"", member.member.name, "\" on ",
          member.host, ", incarnation ", ToNumber(member.member.incarnation), ", last message ",
          Seconds(clock_.Now() - member.pulse->last_message()), " ago"));
    }
    ++decision.others;
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckRoom(decision.others));
  return decision;
}

bool Admission::IsMember(const Hello& hello) const {
  const JobMember* const known = members_.FindIncarnation(hello.incarnation);
  return known != nullptr && !known->member.secret_hash.empty() && HasSecretOf(*known, hello);
}

absl::Status Admission::EndOfData() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      job_.Quoted(), " has reached the end of its data; no more members are admitted"));
}

absl::Status Admission::CheckRoom(size_t others) const {
  if (epochs_.has_begun() && !job_.is_elastic()) {
    return absl::ResourceExhaustedError(absl::StrCat(job_.Quoted(), " has begun with its ",
                                                     job_.terms().world_size,
                                                     " members; no more members are admitted"));
  }
  if (epochs_.has_begun() && epochs_.IsOver()) return EndOfData();
  const uint32_t most = epochs_.has_begun() ? job_.most_workers() : job_.terms().world_size;
  if (others < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(job_.Quoted(), " has ", others, " of ", most, " members"));
}

absl::Status Admission::CheckNotEvicted(const Hello& hello) const {
  const auto evicted = std::find_if(evicted_.begin(), evicted_.end(), [&hello](const Evicted& one) {
    return one.incarnation == hello.incarnation ||
           (!hello.name.empty() && one.name == hello.name) ||
           (hello.rank.has_value() && one.rank == hello.rank);
  });
  if (evicted == evicted_.end()) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("worker \"", evicted->name, "\" was dropped: ", evicted->reason));
}

absl::Status Admission::CheckMayEvict() const {
  if (evicted_.size() < kMaxEvicted) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(job_.Quoted(), " has ", evicted_.size(),
                                                   " evicted workers, of at most ", kMaxEvicted,
                                                   ": readmit some of them first"));
}

void Admission::Evict(const JobMember& member, absl::string_view reason) {
  evicted_.push_back(
      {member.member.name, member.asked_rank, member.member.incarnation, std::string(reason)});
}

bool Admission::IsEvicted(absl::string_view worker) const {
  return std::any_of(evicted_.begin(), evicted_.end(),
                     [worker](const Evicted& evicted) { return evicted.name == worker; });
}

void Admission::Readmit(absl::string_view worker) {
  std::erase_if(evicted_, [worker](const Evicted& evicted) { return evicted.name == worker; });
}

}  // namespace syncgrads::server
