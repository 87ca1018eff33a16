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
  for (auto& [id, member] : members_) {
    if (member.gone && !member.awaits_farewell) continue;
    if (member.member.incarnation == introduction.incarnation) {
      return Return(member, std::move(link));
    }
  }
  if (introduction.generation != Generation{}) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", ToNumber(introduction.incarnation), " is no member of ",
                     Quoted(), " any more; rejoin"));
  }
  std::vector<MemberId> superseded;
  size_t present = 0;
  for (auto& [id, member] : members_) {
    if (member.gone) continue;
    const bool same_name = !introduction.name.empty() && member.member.name == introduction.name;
    const bool same_rank = introduction.rank.has_value() && member.asked_rank == introduction.rank;
    // It died, and this is its successor; of a job that is not elastic only before
    // the start.
    if ((same_name || same_rank) && member.link == nullptr && (!has_begun() || is_elastic())) {
      superseded.push_back(id);
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
  SYNCGRADS_RETURN_IF_ERROR(CheckRoom(present));
  for (MemberId id : superseded) {
    if (has_begun()) {
      Drop(members_.at(id), absl::FailedPreconditionError(absl::StrCat(
                                "superseded by incarnation ", ToNumber(introduction.incarnation),
                                " on ", introduction.host)));
    } else {
      Withdraw(id);
    }
  }

  const MemberId id{next_member_++};
  MemberState& member = members_[id];
  member.member.id = id;
  member.member.incarnation = introduction.incarnation;
  member.member.name =
      !introduction.name.empty() ? introduction.name : NameFor(introduction.rank, id);
  member.asked_rank = introduction.rank;
  member.host = introduction.host;
  member.shares_memory = introduction.shares_memory;
  if (absl::Status kept = Keep(MemberAdmitted{introduction, generation_, id, member.member.name});
      !kept.ok()) {
    members_.erase(id);
    return kept;
  }
  member.link = std::move(link);
  member.last_heard = with_.clock.Now();
  with_.journal.Note(absl::StrCat(Quoted(), ": worker \"", member.member.name, "\" on ",
                                  member.host, " joins as member ", ToNumber(id), ", ", present + 1,
                                  " of ", most_workers()));
  if (with_.log.complete()) Welcome(member);
  if (has_begun() && !superseded.empty()) GoOnWithout();
  TryStart();
  TryGrow();
  return id;
}

absl::Status CoordinatedJob::CheckRoom(size_t present) const {
  if (has_begun() && !is_elastic()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Quoted(), " has begun with its ", terms_.world_size, " members; no more are admitted"));
  }
  if (has_begun() && IsOver()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(), " has come to the end of its data; no more are admitted"));
  }
  const uint32_t most = has_begun() ? most_workers() : terms_.world_size;
  if (present < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(Quoted(), " has ", present, " of ", most, " members"));
}

absl::Status CoordinatedJob::CheckBelongs(const Introduction& introduction) const {
  if (closed() && !IsLeaving(introduction))
    return absl::UnavailableError(absl::StrCat(Quoted(), " is being closed"));
  if (introduction.token != token_) {
    return absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Quoted()));
  }
  if (introduction.generation != Generation{} && introduction.generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", ToNumber(introduction.generation), " of ", Quoted(),
                     " is not the present one, ", ToNumber(generation_), "; rejoin"));
  }
  if (introduction.world_size != terms_.world_size) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(), " has ", terms_.world_size,
                                                      " workers, this one was started for ",
                                                      introduction.world_size));
  }
  const JobTerms terms = {introduction.world_size, introduction.max_workers,
                          introduction.min_workers, introduction.step_timeout};
  if (!(terms == terms_)) {
    const auto said = [](const JobTerms& terms) {
      return absl::StrCat("min_workers ", terms.min_workers, ", max_workers ", terms.max_workers,
                          " and step_timeout ", Seconds(terms.step_timeout));
    };
    return absl::FailedPreconditionError(absl::StrCat(
        Quoted(), " has ", said(terms_), ", this worker was started with ", said(terms)));
  }
  return absl::OkStatus();
}

std::string CoordinatedJob::NameFor(std::optional<uint32_t> rank, MemberId id) const {
  const auto taken = [this](const std::string& name) {
    // A worker that has gone leaves its name to its successor.
    return std::any_of(members_.begin(), members_.end(), [&name](const auto& entry) {
      return !entry.second.gone && entry.second.member.name == name;
    });
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
  if (epoch_told_ && epoch_.Has(member.member.id)) {
    Send(member, epoch_);
  } else {
    TryStart();
  }
  TryGrow();
  return member.member.id;
}

void CoordinatedJob::Welcome(const MemberState& member) {
  const CoordinatorOptions& options = with_.options;
  Send(member, server::Welcome{member.member.id, member.member.name, with_.log.addresses(),
                               options.heartbeat_interval, options.lease, options.stream_grace});
  // It may have been out of reach when they began, and be in one of their rounds still.
  for (const Epoch& epoch : earlier_epochs_) {
    if (epoch.Has(member.member.id)) Send(member, epoch);
  }
}

void CoordinatedJob::ServersComplete() {
  for (const auto& [id, member] : members_) Welcome(member);
}

}  // namespace syncgrads::server
