#include "tests/sim/checker.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/freight.h"

namespace syncgrads::sim {
namespace {

bool HasVersions(const GroupPlan& plan) {
  return std::holds_alternative<Staleness>(plan.spec.policy);
}

std::string ToString(const std::vector<MemberId>& members) {
  return absl::StrJoin(members, ",", [](std::string* out, MemberId member) {
    absl::StrAppend(out, ToNumber(member));
  });
}

}  // namespace

void Checker::OnStored(ServerIndex server, const server::Stored& record) {
  if (const auto* change = std::get_if<server::PlanChange>(&record)) OnChange(server, *change);
  if (const auto* admitted = std::get_if<server::MemberAdmitted>(&record)) {
    admissions_[admitted->hello.incarnation] = {admitted->generation, admitted->member};
  }
  if (const auto* rate = std::get_if<server::LearningRateSet>(&record)) {
    jobs_[rate->generation].rate_factor = rate->factor;
  }
}

void Checker::OnChange(ServerIndex server, const server::PlanChange& change) {
  JobHistory& job = jobs_[change.generation];
  const auto* gone = std::get_if<server::MemberGone>(&change.kind);
  if (gone != nullptr) {
    job.told_gone[server][gone->member] = {{gone->graceful, gone->last_rounds}, change.sequence};
  }
  if (server != ServerIndex{0}) return;
  if (gone != nullptr) {
    OnGone(job, *gone);
  } else if (const auto* group = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    job.groups[(*group)->id] = *group;
  } else if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    OnEpoch(change.generation, job, *epoch);
  } else if (const auto* ended = std::get_if<server::MemberEnded>(&change.kind)) {
    job.ended[ended->member][ended->group] = ended->last_round;
  } else if (const auto* set = std::get_if<server::QuorumSet>(&change.kind)) {
    OnQuorumSet(change.generation, job, *set);
  } else if (const auto* norms = std::get_if<server::StepNorms>(&change.kind)) {
    job.gradient_factors[{norms->group, norms->round}] = norms->gradient_factor;
  } else if (std::holds_alternative<server::JobClosed>(change.kind)) {
    closed_.insert(change.generation);
  }
}

void Checker::OnGone(JobHistory& job, const server::MemberGone& gone) {
  // If a member that left gracefully does not deliver its last contributions within a lease, a
  // second change no longer waits for them. This is not a drop.
  const auto known = job.gone.find(gone.member);
  const bool has_left = known != job.gone.end() && known->second.graceful;
  job.gone[gone.member] = {gone.graceful, gone.last_rounds};
  // While a newcomer waits for the others' state, they may all leave, or reach the end of their
  // data.
  const bool too_late = job.IsNewcomer(gone.member) &&
                        (absl::StrContains(gone.reason, "no worker is left") ||
                         absl::StrContains(gone.reason, "has reached the end of its data"));
  if (gone.graceful || has_left || too_late) return;
  dropped_.push_back(absl::StrCat("member ", ToNumber(gone.member), ": ", gone.reason));
}

void Checker::OnEpoch(Generation generation, JobHistory& job, const Epoch& epoch) {
  std::set<std::string> names;
  std::set<Incarnation> incarnations;
  for (const Member& member : epoch.members) {
    if (!names.insert(member.name).second || !incarnations.insert(member.incarnation).second) {
      world_.Fail(absl::StrCat("epoch ", epoch.number, " has two incarnations of worker \"",
                               member.name, "\""));
    }
  }
  if (!job.epochs.empty() && epoch.number != job.epochs.back().number + 1) {
    world_.Fail(absl::StrCat("epoch ", epoch.number, " follows epoch ", job.epochs.back().number));
  }
  for (const GroupRound& first : epoch.first_rounds) {
    rounds_.OnFirstRound(generation, first);
    if (job.SetOf(first.group, first.round) == nullptr) continue;
    world_.Fail(absl::StrCat("epoch ", epoch.number, " begins with round ", ToNumber(first.round),
                             ", whose members were fixed before"));
  }
  if (epoch.learning_rate.factor != job.rate_factor) {
    world_.Fail(absl::StrCat("epoch ", epoch.number, " has the learning rate factor ",
                             epoch.learning_rate.factor, ", and the one that was set last is ",
                             job.rate_factor));
  }
  job.epochs.push_back(epoch);
}

void Checker::OnQuorumSet(Generation generation, JobHistory& job, const server::QuorumSet& set) {
  const auto fail = [&](const std::string& what) {
    world_.Fail(absl::StrCat("the set of round ", ToNumber(set.round), ", members ",
                             ToString(set.members), ", ", what));
  };
  const GroupPlan* const plan = job.Find(set.group);
  const Epoch* const epoch = job.EpochOf(set.group, set.round);
  if (plan == nullptr || epoch == nullptr) return fail("is of no group, or of no epoch");
  const auto [known, first] = job.sets[set.group].try_emplace(set.round, set.members);
  if (!first) return fail(absl::StrCat("was fixed before: members ", ToString(known->second)));
  size_t with_data = 0;
  for (const Member& member : epoch->members) {
    if (job.HasData(set.group, set.round, member.id)) ++with_data;
  }
  const size_t least = std::get<Quorum>(plan->spec.policy).least;
  if (set.members.size() < std::min(least, with_data)) {
    return fail(
        absl::StrCat("is too small: ", with_data, " members have data, and it takes ", least));
  }
  left_behind_ += set.members.size() < with_data ? 1 : 0;
  for (MemberId member : set.members) {
    if (!epoch->Has(member) || !job.HasData(set.group, set.round, member)) {
      return fail(absl::StrCat("has member ", ToNumber(member), ", which has no data for it"));
    }
    for (uint32_t c = 0; c < plan->servers.size(); ++c) {
      if (contributions_.delivered({generation, set.group, ChunkId{c}, set.round}, member))
        continue;
      return fail(absl::StrCat("has member ", ToNumber(member),
                               ", which has not contributed to chunk ", c));
    }
  }
}

void Checker::OnTold(const server::PlanChange& change) {
  const auto* set = std::get_if<server::QuorumSet>(&change.kind);
  if (set == nullptr) return;
  const std::vector<MemberId>* const stored =
      jobs_[change.generation].SetOf(set->group, set->round);
  if (stored != nullptr && *stored == set->members) return;
  world_.Fail(absl::StrCat("a server is told that round ", ToNumber(set->round), " has members ",
                           ToString(set->members), ", and what is stored is ",
                           stored == nullptr ? "nothing" : ToString(*stored)));
}

double Checker::RateFactorOf(Generation generation, const std::string& group, uint64_t step) const {
  const GroupPlan* const plan = Find(generation, group);
  if (plan == nullptr) return 1;
  const Epoch* const epoch = jobs_.at(generation).EpochOf(plan->id, Round{step});
  return epoch == nullptr ? 1 : epoch->learning_rate.factor;
}

bool Checker::MayBeRefused(Generation generation, MemberId member) const {
  if (closed_.contains(generation)) return true;
  const auto job = jobs_.find(generation);
  return job == jobs_.end() || job->second.gone.contains(member);
}

void Checker::OnPushWritten(const std::string& bytes) {
  absl::StatusOr<PushFrame> push = DecodePush({SpanOf(bytes)});
  if (!push.ok()) return world_.Fail("a worker writes a push that cannot be read");
  const RoundKey key = KeyOf(push->header);
  const MemberId member = push->header.member;
  const std::vector<Contribution>& versions = contributions_.Of(key, member);
  bool made_again = false;
  for (const Contribution& version : versions) {
    if (version.bytes == bytes) return;
    // Other bytes are permitted only for another epoch, and only if contributions depend on the
    // members or cannot be counted twice.
    made_again = made_again || version.header.epoch == push->header.epoch;
  }
  const GroupPlan* const plan = jobs_[key.generation].Find(key.group);
  const bool may_be_other = plan != nullptr && !made_again &&
                            (plan->spec.one_epoch || push->header.skip ||
                             std::holds_alternative<First>(plan->spec.policy));
  if (!versions.empty() && !may_be_other) {
    world_.Fail(absl::StrCat(ToString(key), ": the contribution of member ", ToNumber(member),
                             " was encoded again: it is sent as other bytes"));
  }
  contributions_.Add(key, member, {push->header, BytesOf(push->payload), bytes});
}

void Checker::OnPushDelivered(ServerIndex server, uint64_t applied, const PushHeader& push) {
  const auto job = jobs_.find(push.generation);
  if (job == jobs_.end()) return;
  const auto& told_gone = job->second.told_gone[server];
  const auto told = told_gone.find(push.member);
  if (told != told_gone.end() && told->second.sequence <= applied &&
      !told->second.gone.MayContribute(push.group, push.round)) {
    return;
  }
  contributions_.Deliver(KeyOf(push), push.member);
}

void Checker::OnResult(MemberId member, const server::RoundResult& result, bool with_payload) {
  absl::StatusOr<UpdateFrame> update = DecodeUpdate({SpanOf(result.bare_header)});
  if (!update.ok()) return world_.Fail("a server sends an answer that cannot be read");
  const UpdateHeader& header = update->header;
  if (!header.error.ok()) return;
  const JobHistory& job = jobs_[header.generation];
  const GroupPlan* const plan = job.Find(header.group);
  if (plan == nullptr) {
    return world_.Fail(absl::StrCat("nobody has registered group ", ToNumber(header.group)));
  }
  if (HasVersions(*plan)) return versions_.OnResult(job, *plan, member, header, result);
  rounds_.OnResult(job, *plan, header, result, with_payload);
}

void Checker::OnAnswer(MemberId member, const UpdateFrame& answer) {
  const UpdateHeader& header = answer.header;
  if (!header.error.ok() || header.welcome.has_value()) return;
  const JobHistory& job = jobs_.at(header.generation);
  const GroupPlan* const plan = job.Find(header.group);
  if (plan == nullptr) return world_.Fail("a worker gets a result of a group that there is not");
  if (HasVersions(*plan)) return versions_.OnAnswer(member, answer);
  rounds_.OnAnswer(job, *plan, member, answer);
}

std::optional<Checker::Admission> Checker::AdmissionOf(Incarnation incarnation) const {
  const auto found = admissions_.find(incarnation);
  if (found == admissions_.end()) return std::nullopt;
  return found->second;
}

bool Checker::any_begun() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& job) { return !job.second.epochs.empty(); });
}

bool Checker::any_closed() const {
  return state_lost_ || std::any_of(closed_.begin(), closed_.end(), [this](Generation generation) {
           return !jobs_.at(generation).epochs.empty();
         });
}

uint64_t Checker::epochs() const {
  uint64_t epochs = 0;
  for (const auto& [generation, job] : jobs_) epochs += job.epochs.size();
  return epochs;
}

bool Checker::lost_at_the_start() const { return furthest() == 0 && !dropped_.empty(); }

const GroupPlan* Checker::Find(Generation generation, const std::string& group) const {
  const auto job = jobs_.find(generation);
  if (job == jobs_.end()) return nullptr;
  for (const auto& [id, plan] : job->second.groups) {
    if (plan->spec.name == group) return plan.get();
  }
  return nullptr;
}

Checker::TensorResult Checker::ResultOf(Generation generation, const std::string& group,
                                        uint64_t step, TensorId tensor) const {
  TensorResult out;
  const GroupPlan* const plan = Find(generation, group);
  if (plan == nullptr) return out;
  const bool on_server = std::holds_alternative<Optimizer>(plan->spec.rule);
  const Layout::ChunkRange range = plan->layout.ChunksOf(tensor);
  out.least = ~uint32_t{0};
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    const RoundsChecker::Result* const result =
        rounds_.Find({generation, plan->id, ChunkId{c}, Round{step}});
    if (result == nullptr) return {};
    const Chunk& chunk = plan->layout.chunk(ChunkId{c});
    const size_t s = chunk.SpanOf(tensor);
    const Span& span = chunk.spans[s];
    const size_t element = SizeOf(chunk.dtype);
    const uint32_t count = result->header.counts[s];
    out.least = std::min(out.least, count);
    out.most = std::max(out.most, count);
    if (count > 0 || on_server) {
      out.bytes += result->payload.substr(span.chunk_offset * element, span.elements * element);
    } else {
      out.bytes += std::string(span.elements * element, '\0');
    }
  }
  if (out.most == 0 && !on_server) out.bytes.clear();
  out.known = true;
  return out;
}

bool Checker::MayHave(Generation generation, const std::string& group, MemberId member,
                      uint64_t step, TensorId tensor, const std::string& values) const {
  const GroupPlan* const plan = Find(generation, group);
  return plan != nullptr &&
         versions_.MayHave(*plan, generation, member, Round{step}, tensor, values);
}

void Checker::OnStep(const std::string& worker, Generation generation, uint64_t step,
                     const std::string& state) {
  const auto [known, first] = states_.try_emplace({generation, step}, worker, state);
  if (first || known->second.second == state) return;
  world_.Fail(absl::StrCat("after step ", step, " the replica of ", worker, " is not that of ",
                           known->second.first));
}

void Checker::OnEnd(const std::string& worker, Generation generation, uint64_t steps,
                    const std::string& state) {
  const auto [known, first] = ends_.try_emplace(generation, End{worker, steps, state});
  const End& end = known->second;
  if (first || (end.steps == steps && end.state == state)) return;
  world_.Fail(absl::StrCat(worker, " ends after step ", steps, ", and ", end.worker, " after step ",
                           end.steps, end.state == state ? "" : ", with other parameters"));
}

}  // namespace syncgrads::sim
