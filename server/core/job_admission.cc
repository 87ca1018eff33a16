// CoordinatedJob: who is let in, under which name, and with which answer.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinated_job.h"
#include "server/core/seconds.h"

namespace syncgrads::server {

absl::StatusOr<MemberId> CoordinatedJob::Admit(const Introduction& introduction,
                                               std::shared_ptr<MemberLink> link) {
  SYNCGRADS_RETURN_IF_ERROR(CheckBelongs(introduction));
  std::vector<MemberId> superseded;
  size_t present = 0;
  for (auto& [id, member] : members_) {
    if (member.gone) continue;
    if (member.member.incarnation == introduction.incarnation) {
      return Return(member, std::move(link));
    }
    const bool same_name = !introduction.name.empty() && member.member.name == introduction.name;
    const bool same_rank = introduction.rank.has_value() && member.asked_rank == introduction.rank;
    if ((same_name || same_rank) && member.link == nullptr && !has_begun()) {
      superseded.push_back(id);  // it died before the start, and this is its successor
      continue;
    }
    if (same_name || same_rank) {
      return absl::AlreadyExistsError(
          absl::StrCat(same_name ? absl::StrCat("name \"", introduction.name, "\"")
                                 : absl::StrCat("rank ", *introduction.rank),
                       " of ", Quoted(), " is held by a live worker: \"", member.member.name,
                       "\" on ", member.host, ", incarnation ", ToNumber(member.member.incarnation),
                       ", last heard of ", Seconds(with_.clock.Now() - member.last_heard), " ago"));
    }
    ++present;
  }
  if (introduction.generation != Generation{}) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", ToNumber(introduction.incarnation), " is no member of ",
                     Quoted(), " any more; rejoin"));
  }
  if (has_begun()) {
    return absl::ResourceExhaustedError(absl::StrCat(Quoted(), " has begun with its ", world_size_,
                                                     " members; no more are admitted"));
  }
  if (present >= world_size_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(), " has ", present, " of ", world_size_, " members"));
  }
  for (MemberId id : superseded) members_.erase(id);

  const MemberId id{next_member_++};
  MemberState& member = members_[id];
  member.member.id = id;
  member.member.incarnation = introduction.incarnation;
  member.member.name =
      !introduction.name.empty() ? introduction.name : NameFor(introduction.rank, id);
  member.asked_rank = introduction.rank;
  member.host = introduction.host;
  member.link = std::move(link);
  member.last_heard = with_.clock.Now();
  with_.journal.Note(absl::StrCat(Quoted(), ": worker \"", member.member.name, "\" on ",
                                  member.host, " joins as member ", ToNumber(id), ", ", present + 1,
                                  " of ", world_size_));
  if (with_.log.complete()) Welcome(member);
  TryStart();
  return id;
}

absl::Status CoordinatedJob::CheckBelongs(const Introduction& introduction) const {
  if (closed()) return absl::UnavailableError(absl::StrCat(Quoted(), " is being closed"));
  if (introduction.token != token_) {
    return absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Quoted()));
  }
  if (introduction.generation != Generation{} && introduction.generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(introduction.generation), " of ", Quoted(),
                     " is not the present one, ", ToNumber(generation_), "; rejoin"));
  }
  if (introduction.world_size != world_size_) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(), " has ", world_size_,
                                                      " workers, this one was started for ",
                                                      introduction.world_size));
  }
  return absl::OkStatus();
}

std::string CoordinatedJob::NameFor(std::optional<uint32_t> rank, MemberId id) const {
  const auto taken = [this](const std::string& name) {
    return std::any_of(members_.begin(), members_.end(),
                       [&name](const auto& entry) { return entry.second.member.name == name; });
  };
  const std::string name = absl::StrCat("worker-", rank.value_or(ToNumber(id)));
  std::string free = name;
  for (int number = 2; taken(free); ++number) free = absl::StrCat(name, "-", number);
  return free;
}

MemberId CoordinatedJob::Return(MemberState& member, std::shared_ptr<MemberLink> link) {
  with_.journal.Note(
      absl::StrCat(Quoted(), ": worker \"", member.member.name, "\" is back on a new stream"));
  member.link = std::move(link);
  member.link_broken = absl::InfiniteFuture();
  member.last_heard = with_.clock.Now();
  if (with_.log.complete()) Welcome(member);
  if (epoch_told_) {
    Send(member, epoch_);
  } else {
    TryStart();
  }
  return member.member.id;
}

void CoordinatedJob::Welcome(const MemberState& member) {
  const CoordinatorOptions& options = with_.options;
  Send(member, server::Welcome{member.member.id, member.member.name, with_.log.addresses(),
                               options.heartbeat_interval, options.lease, options.stream_grace});
}

void CoordinatedJob::ServersComplete() {
  for (const auto& [id, member] : members_) Welcome(member);
}

}  // namespace syncgrads::server
