#include "server/core/plan_log/compact_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {
namespace {

constexpr size_t kMaxGenerations = 10000;

// The history of one member, according to the records.
struct MemberHistory {
  // The coordinator stores admissions, followers do not.
  bool admitted = false;
  std::string name;  // of an admitted member
  // The member has gone before it was in any epoch.
  bool withdrawn = false;
  bool dropped = false;
  bool left = false;  // gracefully
  // The member was evicted and its worker was not readmitted.
  bool evicted = false;
  bool in_newest_epoch = false;
  bool in_kept_epoch = false;
  // The index of the Epoch that the member entered as a newcomer, until it is ready.
  std::optional<size_t> behind_since;

  bool HasGone() const { return dropped || left; }
};

// The workers of one name that were evicted and readmitted.
struct Readmission {
  // The index of the newest record; it lifts all earlier evictions.
  size_t newest = 0;
  std::vector<MemberId> members;
};

struct JobHistory {
  std::map<MemberId, MemberHistory> members;
  // The evicted members of each name, until a readmission.
  std::map<std::string, std::vector<MemberId>> evicted;
  std::map<std::string, Readmission> readmissions;
  // A restart creates the job from this member's admission.
  std::optional<MemberId> first_admitted;
  // The record of this member names the group with the state.
  std::optional<MemberId> first_ready;
  // The indices of the Epochs, in order, and of those that are kept.
  std::vector<size_t> epochs;
  std::set<size_t> kept_epochs;
  // Every server has applied the changes before this one.
  size_t applied = 0;
  // The index of the newest EpochProposed or Epoch.
  size_t newest_epoch_change = 0;
  bool closed = false;

  // Whether a restart does not need this member's admission.
  bool IsPast(MemberId id) const {
    const auto found = members.find(id);
    if (found == members.end()) return false;
    const MemberHistory& member = found->second;
    // An id is never used twice: the next one follows the largest.
    const bool counts = id == members.rbegin()->first || id == first_admitted || id == first_ready;
    // The admission of an evicted member identifies the worker to refuse.
    if (counts || member.evicted) return false;
    // A member that has left gracefully may reconnect and retry its Leave.
    return member.withdrawn || (member.dropped && !member.in_newest_epoch) ||
           (member.left && !member.in_kept_epoch);
  }

  // Whether a restart does not need this change of a member, at index `i`.
  bool IsForgotten(MemberId id, size_t i) const {
    const MemberHistory& member = members.at(id);
    if (member.in_kept_epoch || !member.HasGone()) return false;
    // A restarted follower ignores changes of members that are in no epoch.
    if (!first_admitted.has_value()) return true;
    if (member.admitted && !IsPast(id)) return false;
    // No server knows a member that was withdrawn.
    return i < applied || member.withdrawn;
  }

  // Whether a restart does not need the readmission at index `i`.
  bool IsForgotten(const WorkerReadmitted& readmitted, size_t i) const {
    const Readmission& readmission = readmissions.at(readmitted.worker);
    if (i != readmission.newest) return true;
    // An eviction is restored only with the admission of its member.
    return std::all_of(readmission.members.begin(), readmission.members.end(),
                       [this](MemberId id) { return IsPast(id); });
  }
};

// Of two records with the same key, the later one replaces the earlier one. The key is kind,
// job, generation, group (or server), member.
using Replaced = std::tuple<int, std::string, Generation, GroupId, MemberId>;

class Compaction {
 public:
  Compaction(PlanStart& start, std::vector<Stored>& records, const JobsNow& now)
      : start_(start), records_(records), now_(now) {
    for (size_t i = 0; i < records_.size(); ++i) Read(i);
    for (auto& [key, job] : jobs_) ChooseEpochs(key, job);
  }

  void Run() {
    for (const auto& [key, job] : jobs_) {
      // Followers do not assign generations. They store no admissions.
      if (!IsOver(key) || !job.first_admitted.has_value()) continue;
      Generation& generation = start_.generations[key.first];
      generation = std::max(generation, key.second);
    }
    BoundGenerations();
    std::vector<Stored> kept;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (IsNeeded(i)) kept.push_back(std::move(records_[i]));
    }
    records_ = std::move(kept);
  }

 private:
  // Keeps the largest. A name that is dropped is safe: generations assigned after the next
  // start are larger than all of these.
  void BoundGenerations() {
    if (start_.generations.size() <= kMaxGenerations) return;
    std::vector<std::pair<Generation, std::string>> all;
    for (const auto& [job, generation] : start_.generations) all.push_back({generation, job});
    std::sort(all.begin(), all.end());
    all.resize(all.size() - kMaxGenerations);
    for (const auto& [generation, job] : all) start_.generations.erase(job);
  }

  void Read(size_t i) {
    const Stored& record = records_[i];
    if (const auto replaced = Replaces(record)) newest_[*replaced] = i;
    if (const auto* admitted = std::get_if<MemberAdmitted>(&record)) {
      JobHistory& job = jobs_[{admitted->hello.job, admitted->generation}];
      job.members[admitted->member].admitted = true;
      job.members[admitted->member].name = admitted->name;
      if (!job.first_admitted.has_value()) job.first_admitted = admitted->member;
    } else if (const auto* withdrawn = std::get_if<MemberWithdrawn>(&record)) {
      jobs_[{withdrawn->job, withdrawn->generation}].members[withdrawn->member].withdrawn = true;
    } else if (const auto* ready = std::get_if<MemberReady>(&record)) {
      JobHistory& job = jobs_[{ready->job, ready->generation}];
      if (!job.first_ready.has_value()) job.first_ready = ready->member;
      job.members[ready->member].behind_since.reset();
    } else if (const auto* readmitted = std::get_if<WorkerReadmitted>(&record)) {
      Read(*readmitted, i);
    } else if (std::holds_alternative<ServerSeen>(record)) {
      has_other_servers_ = true;
    } else if (const auto* change = std::get_if<PlanChange>(&record)) {
      Read(*change, i);
    }
  }

  void Read(const WorkerReadmitted& readmitted, size_t i) {
    JobHistory& job = jobs_[{readmitted.job, readmitted.generation}];
    Readmission& readmission = job.readmissions[readmitted.worker];
    readmission.newest = i;
    for (MemberId id : std::exchange(job.evicted[readmitted.worker], {})) {
      job.members[id].evicted = false;
      readmission.members.push_back(id);
    }
  }

  void Read(const PlanChange& change, size_t i) {
    newest_change_ = i;
    JobHistory& job = jobs_[{change.job, change.generation}];
    if (std::holds_alternative<EpochProposed>(change.kind)) job.newest_epoch_change = i;
    if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
      job.newest_epoch_change = i;
      job.epochs.push_back(i);
      for (auto& [id, member] : job.members) member.in_newest_epoch = epoch->Has(id);
      if (!epoch->handover.has_value()) return;
      for (MemberId id : epoch->handover->to) job.members[id].behind_since = i;
    } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
      MemberHistory& member = job.members[gone->member];
      member.dropped = !gone->graceful;
      member.left = gone->graceful;
      member.evicted = gone->evicted;
      if (member.admitted && member.evicted) job.evicted[member.name].push_back(gone->member);
      member.behind_since.reset();
    } else if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
      job.members.try_emplace(ended->member);
    } else if (const auto* closed = std::get_if<JobClosed>(&change.kind)) {
      // A follower still has to report to the coordinator that it has given the job up.
      job.closed = !closed->given_up;
      newest_opening_or_end_ = i;
    } else if (std::holds_alternative<JobOpened>(change.kind)) {
      newest_opening_or_end_ = i;
    }
  }

  const Epoch& EpochAt(size_t i) const {
    return std::get<Epoch>(std::get<PlanChange>(records_[i]).kind);
  }

  // Decides which epochs of a job are kept, and which members are in one of them.
  void ChooseEpochs(const JobKey& key, JobHistory& job) {
    constexpr size_t kNewest = JobPlan::kEarlierEpochs + 1;
    const auto oldest = now_.oldest_epochs.find(key);
    auto first = job.epochs.begin();
    if (oldest != now_.oldest_epochs.end() && job.epochs.size() > kNewest) {
      first = std::find_if(first, job.epochs.end() - kNewest, [this, oldest](size_t i) {
        return EpochAt(i).number >= oldest->second;
      });
    }
    // As Roster::Add does, except for the newest ones.
    const auto newest = job.epochs.end() - std::min(kNewest, job.epochs.size());
    for (auto one = first; one < newest; ++one) {
      if (!HasNoRounds(EpochAt(*one), EpochAt(*(one + 1)))) job.kept_epochs.insert(*one);
    }
    job.kept_epochs.insert(std::max(first, newest), job.epochs.end());
    // An epoch begins only when every server has applied its proposal, and all changes before that.
    if (first != job.epochs.begin()) job.applied = *first;
    for (const auto& [id, member] : job.members) {
      if (member.admitted && member.behind_since) job.kept_epochs.insert(*member.behind_since);
    }
    for (size_t i : job.kept_epochs) {
      for (const Member& member : EpochAt(i).members) job.members[member.id].in_kept_epoch = true;
    }
  }

  static std::optional<Replaced> Replaces(const Stored& record) {
    if (const auto* seen = std::get_if<ServerSeen>(&record)) {
      return Replaced(0, "", {}, GroupId{ToNumber(seen->server)}, {});
    }
    if (const auto* rate = std::get_if<LearningRateSet>(&record)) {
      return Replaced(4, rate->job, rate->generation, {}, {});
    }
    const auto* change = std::get_if<PlanChange>(&record);
    if (change == nullptr) return std::nullopt;
    if (const auto* quorum = std::get_if<QuorumSet>(&change->kind)) {
      return Replaced(1, change->job, change->generation, quorum->group, {});
    }
    if (const auto* norms = std::get_if<StepNorms>(&change->kind)) {
      return Replaced(2, change->job, change->generation, norms->group, {});
    }
    if (const auto* ended = std::get_if<MemberEnded>(&change->kind)) {
      return Replaced(3, change->job, change->generation, ended->group, ended->member);
    }
    return std::nullopt;
  }

  // Whether the job is closed and none of its members can reconnect.
  bool IsOver(const JobKey& key) const {
    const JobHistory& job = jobs_.at(key);
    return job.closed && (!job.first_admitted.has_value() || now_.forgotten.contains(key));
  }

  bool IsNeeded(size_t i) const {
    const Stored& record = records_[i];
    if (i == newest_change_ || i == newest_opening_or_end_) return true;
    if (const auto replaced = Replaces(record); replaced && newest_.at(*replaced) != i)
      return false;
    if (const auto* admitted = std::get_if<MemberAdmitted>(&record)) {
      return IsNeeded({admitted->hello.job, admitted->generation}, admitted->member);
    }
    if (const auto* withdrawn = std::get_if<MemberWithdrawn>(&record)) {
      return IsNeeded({withdrawn->job, withdrawn->generation}, withdrawn->member);
    }
    if (const auto* ready = std::get_if<MemberReady>(&record)) {
      return IsNeeded({ready->job, ready->generation}, ready->member);
    }
    if (const auto* readmitted = std::get_if<WorkerReadmitted>(&record)) {
      const JobKey key{readmitted->job, readmitted->generation};
      return !IsOver(key) && !jobs_.at(key).IsForgotten(*readmitted, i);
    }
    if (const auto* rate = std::get_if<LearningRateSet>(&record)) {
      const JobKey key{rate->job, rate->generation};
      return jobs_.contains(key) && !IsOver(key);
    }
    if (std::holds_alternative<ServerSeen>(record)) return true;
    const PlanChange& change = std::get<PlanChange>(record);
    const JobKey key{change.job, change.generation};
    if (IsOver(key)) {
      const bool others = has_other_servers_ || !start_.servers.empty();
      return others && std::holds_alternative<JobClosed>(change.kind);
    }
    const JobHistory& job = jobs_.at(key);
    if (std::holds_alternative<EpochProposed>(change.kind)) return job.newest_epoch_change == i;
    if (std::holds_alternative<Epoch>(change.kind)) return job.kept_epochs.contains(i);
    if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
      return !job.IsForgotten(gone->member, i);
    }
    const auto* ended = std::get_if<MemberEnded>(&change.kind);
    return ended == nullptr || !job.IsForgotten(ended->member, i);
  }

  bool IsNeeded(const JobKey& key, MemberId member) const {
    return !IsOver(key) && !jobs_.at(key).IsPast(member);
  }

  PlanStart& start_;
  std::vector<Stored>& records_;
  const JobsNow& now_;

  std::map<JobKey, JobHistory> jobs_;
  // The index of the last record with each key.
  std::map<Replaced, size_t> newest_;
  std::optional<size_t> newest_change_, newest_opening_or_end_;
  bool has_other_servers_ = false;
};

}  // namespace

void CompactPlan(PlanStart& start, std::vector<Stored>& records, const JobsNow& now) {
  Compaction(start, records, now).Run();
}

}  // namespace syncgrads::server
