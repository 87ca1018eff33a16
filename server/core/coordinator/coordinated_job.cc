#include "server/core/coordinator/coordinated_job.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/names.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

CoordinatedJob::CoordinatedJob(const Hello& first, Generation generation,
                               const JobDependencies& dependencies, bool restored)
    : job_(first, generation, restored),
      dependencies_(dependencies),
      plan_(job_.name(), job_.generation(), dependencies.log, dependencies.store),
      members_(job_, dependencies.membership(), plan_),
      decisions_(plan_, holders_),
      epochs_(job_, dependencies.membership(), plan_, members_, holders_),
      registrations_(job_, dependencies, plan_, members_, decisions_, epochs_),
      admission_(job_, dependencies.clock, plan_, members_, epochs_),
      detector_(job_, dependencies.membership(), members_, holders_),
      checkpoints_(job_, dependencies.journal, members_),
      learning_rate_(job_, dependencies.journal, plan_, members_, epochs_, registrations_) {
  if (restored) return;
  const JobTerms& terms = job_.terms();
  Record(EventKind::kOpened, "",
         absl::StrCat(" opens for ", terms.world_size, " workers",
                      job_.is_elastic() ? absl::StrCat(", at least ", terms.min_workers,
                                                       " and at most ", terms.max_workers)
                                        : "",
                      ", generation ", ToNumber(generation)));
  plan_.Append(JobOpened{job_.token_hash()});
}

absl::StatusOr<MemberId> CoordinatedJob::Admit(const Hello& hello,
                                               std::shared_ptr<MemberLink> link) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Admission::Decision decision, admission_.Decide(hello));
  if (decision.returning.has_value()) {
    Reconnect(*members_.FindKnown(*decision.returning), std::move(link));
    return *decision.returning;
  }
  for (MemberId superseded : decision.superseded) {
    if (has_begun()) {
      if (IsPlanted(PlantedBug::kTwoIncarnationsInOneRound)) continue;
      Drop(*members_.Find(superseded), DropReason::kSuperseded,
           absl::FailedPreconditionError(
               absl::StrCat("superseded by a new worker on ", hello.host)));
    } else {
      members_.Withdraw(superseded);
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const MemberId id, members_.Add(hello, link->shares_memory()));
  members_.Connect(id, std::move(link));
  detector_.Resume("a worker joins");
  const JobMember& member = *members_.Find(id);
  RecordWorker(EventKind::kJoined, member.member.name,
               absl::StrCat(" on ", member.host, " joins as member ", ToNumber(id), ", ",
                            decision.others + 1, " of ", job_.most_workers()));
  if (dependencies_.log.complete()) Welcome(member);
  if (has_begun() && !decision.superseded.empty()) ContinueWithoutGone();
  TryStart();
  TryGrow();
  epochs_.SendReason(id);
  return id;
}

void CoordinatedJob::Record(EventKind kind, const std::string& worker, absl::string_view text,
                            LogLevel level) const {
  dependencies_.journal.Record({.kind = kind,
                                .job = name(),
                                .worker = worker,
                                .text = absl::StrCat(job_.Quoted(), text),
                                .level = level});
}

void CoordinatedJob::RecordWorker(EventKind kind, const std::string& worker, absl::string_view text,
                                  LogLevel level) const {
  Record(kind, worker, absl::StrCat(": worker \"", worker, "\"", text), level);
}

bool CoordinatedJob::HasTrained() const {
  const std::shared_ptr<Job> here = dependencies_.own.Find(name());
  return here != nullptr && here->generation() == generation() && here->HasClosed(Round{1});
}

bool CoordinatedJob::CanBeReplacedBy(const Hello& hello) const {
  if (!detector_.is_abandoned() || closed() || hello.generation != Generation{} ||
      hello.only_running || !job_.HasToken(hello.token)) {
    return false;
  }
  return !job_.is_elastic() || !(TermsOf(hello) == job_.terms()) || epochs_.IsOver();
}

void CoordinatedJob::Reconnect(const JobMember& member, std::shared_ptr<MemberLink> link) {
  const MemberId id = member.member.id;
  RecordWorker(EventKind::kReconnected, member.member.name, " has reconnected on a new stream");
  members_.Connect(id, std::move(link));
  ++reconnects_;
  detector_.Resume("a worker has reconnected");
  if (dependencies_.log.complete()) Welcome(member);
  if (!epochs_.SendPresent(member)) TryStart();
  TryGrow();
  epochs_.SendReason(id);
}

void CoordinatedJob::Welcome(const JobMember& member) const {
  members_.SendWelcome(member);
  epochs_.SendEarlier(member);
}

void CoordinatedJob::WelcomeAll() {
  for (const auto& [id, member] : members_.all()) Welcome(member);
}

void CoordinatedJob::Refuse(MemberId id, uint64_t request, const absl::Status& error) {
  if (const JobMember* member = members_.Renew(id)) Refuse(*member, request, error);
}

void CoordinatedJob::End(MemberId id, uint64_t request, GroupId group, Round last_round,
                         bool follows) {
  const JobMember* const member = members_.Renew(id);
  if (member == nullptr) return;
  if (absl::Status known = registrations_.CheckGroup("EndGroup for group", group); !known.ok()) {
    return Refuse(*member, request, known);
  }
  if (const JobPlan::End* end = plan_.EndOf(id, group)) {
    if (end->last_round == last_round && end->follows == follows) {
      return members_.SendWhenApplied(end->sequence, id, Done{request});
    }
    return Refuse(
        *member, request,
        absl::FailedPreconditionError(absl::StrCat(
            "worker \"", member->member.name, "\" ends group ", ToNumber(group), " after round ",
            ToNumber(last_round), ", but has already ended it after ", ToNumber(end->last_round))));
  }
  dependencies_.journal.Debug(absl::StrCat(job_.Quoted(), ": worker \"", member->member.name,
                                           "\" ends group ", ToNumber(group), " after round ",
                                           ToNumber(last_round)));
  holders_.SetEnded(id, group);
  members_.SendWhenApplied(plan_.Append(MemberEnded{id, group, last_round, follows}), id,
                           Done{request});
}

void CoordinatedJob::Leave(MemberId id, uint64_t request, std::vector<GroupRound> last_rounds) {
  if (const JobMember* left = members_.FindKnown(id);
      left != nullptr && left->awaits_farewell && left->link != nullptr) {
    return members_.SendWhenApplied(0, id, Farewell{request});  // a retry on a new stream
  }
  const JobMember* const member = members_.Find(id);
  if (member == nullptr) return;
  if (last_rounds.size() > registrations_.size()) {
    return Refuse(*member, request,
                  absl::InvalidArgumentError(
                      absl::StrCat("Leave has ", last_rounds.size(), " last rounds, but ",
                                   job_.Quoted(), " has ", registrations_.size(), " groups")));
  }
  // Workers of a job that is not elastic leave at its end, about which there is another line.
  const bool noted = job_.is_elastic() || !plan_.HasEndedAny(id);
  RecordWorker(EventKind::kLeft, member->member.name, " leaves",
               noted ? LogLevel::kInfo : LogLevel::kDebug);
  if (!has_begun()) {
    members_.Send(*member, Farewell{request});
    return members_.Withdraw(id);
  }
  const Incarnation incarnation = member->member.incarnation;
  members_.MarkLeft(id);
  const uint64_t sequence =
      plan_.Append(MemberGone{id, incarnation, "left", true, std::move(last_rounds)});
  departures_.Left(id, incarnation, dependencies_.clock.Now());
  members_.SendWhenApplied(sequence, id, Farewell{request});
  if (!job_.is_elastic() || epochs_.IsOver()) return;
  // The last member with the state has left because the data has ended: the job is over, also for
  // those that have joined and have not received the state.
  if (holders_.HasEnded(id) && !epochs_.AnyHasState()) return DropAll(admission_.EndOfData());
  if (!AllGone()) ContinueWithoutGone();
}

absl::Status CoordinatedJob::CheckReady(const JobMember& member, GroupId group) {
  if (epochs_.IsNewcomer(member.member.id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker \"", member.member.name, "\" is ready, but is not in any epoch"));
  }
  SYNCGRADS_RETURN_IF_ERROR(registrations_.CheckGroup(
      absl::StrCat("worker \"", member.member.name, "\" has its state in group"), group));
  const GroupId chosen = holders_.ChooseGroup(group);
  if (group == chosen) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("worker \"", member.member.name,
                                                 "\" has its state in group ", ToNumber(group),
                                                 ", the others in group ", ToNumber(chosen)));
}

void CoordinatedJob::Ready(MemberId id, uint64_t request, GroupId group) {
  const JobMember* const member = members_.Renew(id);
  if (member == nullptr) return;
  absl::Status status = CheckReady(*member, group);
  if (status.ok() && !holders_.IsReady(id)) {
    status = plan_.StoreRecord(MemberReady{name(), generation(), id, group});
  }
  if (!status.ok()) return Refuse(*member, request, status);
  if (holders_.SetReady(id)) {
    RecordWorker(EventKind::kReady, member->member.name, " is up to date");
  }
  members_.Send(*member, Done{request});
  TryGrow();
}

void CoordinatedJob::Arrived(ServerIndex server, const Arrival& arrival) {
  if (arrival.generation == generation()) decisions_.Arrived(server, arrival);
}

void CoordinatedJob::Reduced(ServerIndex server, const ReducedChunk& chunk) {
  if (!closed() && chunk.generation == generation()) decisions_.Reduced(server, chunk);
}

void CoordinatedJob::DecideRounds() {
  if (closed() || !has_begun() || epochs_.is_proposed()) return;
  decisions_.DecideQuorums(dependencies_.clock.Now());
}

void CoordinatedJob::TryGrow() {
  if (!has_begun() || closed()) return;
  if (epochs_.is_proposed()) return FinishProposal();
  epochs_.TakeInNewcomers();
}

void CoordinatedJob::FinishProposal() {
  const bool changes_rate = learning_rate_.is_pending();
  switch (epochs_.FinishProposal([this](Epoch& epoch) {
    decisions_.PassDecided(epoch.first_rounds);
    learning_rate_.Complete(epoch);
  })) {
    case JobEpochs::Outcome::kWaits:
      return;
    case JobEpochs::Outcome::kStateLost:
      state_lost_ = true;
      return DropAll(absl::DataLossError("no worker is left that has the job's state"));
    case JobEpochs::Outcome::kBegun:
      learning_rate_.EpochBegun(changes_rate);
      registrations_.Continue();
      return TryGrow();
  }
}

absl::Status CoordinatedJob::Evict(const std::string& token, const std::string& worker,
                                   const std::string& reason) {
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(token));
  const JobMember* const member = members_.FindNamed(worker);
  if (member == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(job_.Quoted(), " has no worker \"", Printable(worker, kMaxNameBytes), "\""));
  }
  SYNCGRADS_RETURN_IF_ERROR(admission_.CheckMayEvict());
  Drop(*member, DropReason::kEvicted,
       absl::AbortedError(absl::StrCat("evicted: ", Printable(reason))));
  if (!AllGone()) ContinueWithoutGone();
  return absl::OkStatus();
}

absl::Status CoordinatedJob::Readmit(const std::string& token, const std::string& worker) {
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(token));
  if (!admission_.IsEvicted(worker)) {
    return absl::NotFoundError(
        absl::StrCat("no worker \"", worker, "\" was evicted from ", job_.Quoted()));
  }
  SYNCGRADS_RETURN_IF_ERROR(plan_.StoreRecord(WorkerReadmitted{name(), generation(), worker}));
  admission_.Readmit(worker);
  RecordWorker(EventKind::kReadmitted, worker, " may join again");
  return absl::OkStatus();
}

void CoordinatedJob::Drop(const JobMember& member, DropReason reason, const absl::Status& why) {
  drops_.Add(reason);
  const bool evicted = absl::IsAborted(why);
  RecordWorker(evicted ? EventKind::kEvicted : EventKind::kDropped, member.member.name,
               absl::StrCat(" on ", member.host, " is dropped: ", why.message()),
               LogLevel::kWarning);
  if (evicted) admission_.Evict(member, why.message());
  // Before the first epoch, servers know no members; an eviction is stored for a restart.
  const MemberId id = member.member.id;
  if (has_begun() || evicted) {
    plan_.Append(MemberGone{id,
                            member.member.incarnation,
                            std::string(why.message()),
                            /*graceful=*/false,
                            {},
                            evicted});
  }
  members_.Expel(id, absl::Status(why.code(), absl::StrCat("worker \"", member.member.name,
                                                           "\" was dropped: ", why.message())));
  // A newcomer is in no epoch. Before the first one, ContinueWithoutGone withdraws the member.
  if (has_begun() && epochs_.IsNewcomer(id)) {
    members_.Withdraw(id);
    holders_.Forget(id);
  }
}

void CoordinatedJob::DropAll(const absl::Status& why) {
  for (const JobMember* member : members_.Ranked()) Drop(*member, DropReason::kOver, why);
}

void CoordinatedJob::ContinueWithoutGone() {
  if (!has_begun()) {
    members_.WithdrawGone();
    return TryStart();
  }
  if (!epochs_.AnyGone()) return;
  if (epochs_.is_proposed()) return FinishProposal();
  epochs_.Propose();
}

void CoordinatedJob::DropLost() {
  for (MemberGone& gone :
       departures_.TakeOverdue(dependencies_.clock.Now(), dependencies_.options.membership.lease)) {
    plan_.Append(std::move(gone));
  }
  members_.GiveUpFarewells();
  // Members send heartbeats only after their Welcome, which is sent when every server has
  // connected. Until then an open stream renews the lease.
  if (!dependencies_.log.complete()) members_.RenewConnected();
  const auto failures = detector_.Detect(has_begun(), epochs_.IsOver());
  if (failures.empty()) return;
  for (const auto& [member, kind, reason] : failures) Drop(*members_.Find(member), kind, reason);
  if (!AllGone()) ContinueWithoutGone();
}

absl::StatusOr<uint32_t> CoordinatedJob::RequestCheckpoint(const std::string& token) const {
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(token));
  return checkpoints_.Request(epochs_.present());
}

absl::StatusOr<uint64_t> CoordinatedJob::SetLearningRate(const std::string& token, double factor,
                                                         const std::string& by) {
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(token));
  SYNCGRADS_RETURN_IF_ERROR(learning_rate_.Set(factor, by));
  ChangeLearningRate();
  return epochs_.present().number + (learning_rate_.is_pending() ? 1 : 0);
}

void CoordinatedJob::SetLearningRate(MemberId id, uint64_t request, double factor) {
  const JobMember* const member = members_.Renew(id);
  if (member == nullptr) return;
  const absl::Status set =
      learning_rate_.Set(factor, absl::StrCat("worker \"", member->member.name, "\""));
  if (!set.ok()) return Refuse(*member, request, set);
  learning_rate_.AnswerWhenApplied(id, request);
  ChangeLearningRate();
}

void CoordinatedJob::ChangeLearningRate() {
  if (learning_rate_.is_pending() && !epochs_.is_proposed()) epochs_.Propose();
}

absl::StatusOr<std::vector<MemberReport>> CoordinatedJob::RequestTrace(
    const std::string& token, const std::map<MemberId, uint64_t>& traces,
    absl::Duration length) const {
  SYNCGRADS_RETURN_IF_ERROR(job_.CheckToken(token));
  std::vector<MemberReport> workers = Report().members;
  std::erase_if(workers, [&traces](const MemberReport& one) {
    return one.gone || !one.rank.has_value() || !traces.contains(one.member);
  });
  for (const MemberReport& worker : workers) {
    members_.Send(*members_.Find(worker.member), TraceRequested{traces.at(worker.member), length});
  }
  return workers;
}

JobReport CoordinatedJob::Report() const {
  return {ReportMembers(members_, epochs_.present(), plan_, dependencies_.clock.Now()),
          dependencies_.options.membership.lease,
          members_.joins(),
          reconnects_,
          drops_,
          checkpoints_.count()};
}

void CoordinatedJob::SampleCurves(absl::Time now) {
  if (!curves_.IsDue(now)) return;
  std::vector<TrainingFigures> figures;
  for (const JobMember* member : members_.Ranked()) {
    if (auto reported = member->pulse->figures()) figures.push_back(*std::move(reported));
  }
  const auto& steps_per_second = dependencies_.options.steps_per_second;
  curves_.Sample(figures, steps_per_second == nullptr ? 0 : steps_per_second(name()), now);
}

absl::Status CoordinatedJob::Close(const std::string& reason, bool last, absl::StatusCode code) {
  // If the plan could not be stored, the reason has the path of its file.
  const std::string why = absl::StrCat(": ", reason);
  dependencies_.journal.Record(
      {.kind = EventKind::kClosed,
       .job = name(),
       .text = absl::StrCat(job_.Quoted(), " is closed", failure().ok() ? why : ""),
       .detail = failure().ok() ? "" : why});
  epochs_.CancelProposal();
  registrations_.Cancel();
  closed_at_ = dependencies_.clock.Now();
  // JobClosed is stored before anyone is informed: for those who are, the job must not be open
  // again after a restart.
  const absl::Status stored = plan_.Close(reason, last);
  members_.ExpelAll(absl::Status(code, absl::StrCat(job_.Quoted(), " is closed: ", reason)));
  SendApplied();
  return stored;
}

bool CoordinatedJob::CanBeForgotten() const {
  if (!closed() || members_.signals_wait()) return false;
  const PlanLog& log = dependencies_.log;
  if (!members_.AnyAwaitsFarewell() && plan_.closed_by() <= log.applied_by_all()) return true;
  // A member or a server that is disconnected may still reconnect and be informed. It has as
  // long as a member whose stream broke.
  return plan_.closed_by() <= log.applied_by_connected() &&
         dependencies_.clock.Now() - closed_at_ > dependencies_.options.membership.stream_grace;
}

void CoordinatedJob::Restore(const MemberReady& ready) {
  if (members_.FindKnown(ready.member) == nullptr) return;
  holders_.ChooseGroup(ready.group);
  holders_.SetReady(ready.member);
}

void CoordinatedJob::Restore(const PlanChange& change) {
  const absl::Time now = dependencies_.clock.Now();
  plan_.Restore(change);
  registrations_.Restore(change);
  decisions_.Restore(change);
  epochs_.Restore(change);
  if (const auto* ended = std::get_if<MemberEnded>(&change.kind)) {
    holders_.SetEnded(ended->member, ended->group);
  } else if (const auto* gone = std::get_if<MemberGone>(&change.kind)) {
    departures_.Forget(gone->member);
    if (gone->graceful) departures_.Left(gone->member, gone->incarnation, now);
    members_.Restore(*gone);
    const JobMember* const member = members_.FindKnown(gone->member);
    if (member != nullptr && gone->evicted) admission_.Evict(*member, gone->reason);
  } else if (const auto* closed = std::get_if<JobClosed>(&change.kind)) {
    members_.Restore(*closed);
    closed_at_ = now;
  }
}

void CoordinatedJob::FinishRestore() {
  if (closed()) return;
  epochs_.FinishRestore();
  // The coordinator may have died after it had stored that a member is gone, and before it
  // proposed an epoch without that member.
  if (!epochs_.is_proposed() && epochs_.IsOutdated() && !AllGone()) epochs_.Propose();
  // It may also have died after it had stored a learning rate.
  if (has_begun() && !AllGone()) ChangeLearningRate();
  TryGrow();
  SendApplied();
}

}  // namespace syncgrads::server
