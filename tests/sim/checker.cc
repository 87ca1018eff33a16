#include "tests/sim/checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/kernels/reference.h"
#include "common/optim/optimizer.h"
#include "common/optim/reference.h"
#include "server/state/slot_record.h"
#include "tests/sim/freight.h"

namespace syncgrads::sim {
namespace {

template <typename T>
std::vector<T> ValuesOf(const std::byte* bytes, size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes, count * sizeof(T));
  return values;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

bool IsIn(const std::vector<uint32_t>& values, uint32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// What the state has where a result lies, read as a restarted server does.
absl::StatusOr<std::optional<server::RoundRecord>> Stored(const server::Slot& slot) {
  if (slot.record.empty()) return std::optional<server::RoundRecord>();
  server::Slot shadow;
  const auto borrow = [](const AlignedBuffer& buffer) {
    return AlignedBuffer::Borrow(const_cast<std::byte*>(buffer.data()), buffer.size());
  };
  shadow.values = borrow(slot.values);
  for (const AlignedBuffer& array : slot.optimizer) shadow.optimizer.push_back(borrow(array));
  shadow.updates.resize(slot.updates.size());
  shadow.record = slot.record;
  shadow.contributors = slot.contributors;
  shadow.newest = slot.newest;
  return server::ReadPublished(shadow);
}

}  // namespace

void Checker::Fail(const RoundKey& key, const std::string& what) {
  world_.Fail(absl::StrCat("generation ", ToNumber(key.generation), ", group ", ToNumber(key.group),
                           ", chunk ", ToNumber(key.chunk), ", round ", ToNumber(key.round), ": ",
                           what));
}

void Checker::OnStored(ServerIndex server, const server::Stored& record) {
  if (const auto* change = std::get_if<server::PlanChange>(&record)) OnChange(server, *change);
  if (const auto* admitted = std::get_if<server::MemberAdmitted>(&record)) {
    admissions_[admitted->introduction.incarnation] = {admitted->generation, admitted->member};
  }
}

void Checker::OnChange(ServerIndex server, const server::PlanChange& change) {
  Job& job = jobs_[change.generation];
  const auto* gone = std::get_if<server::MemberGone>(&change.kind);
  if (gone != nullptr) {
    job.known_gone[server][gone->member] = {gone->in_order, gone->last_rounds};
  }
  if (server != ServerIndex{0}) return;
  if (gone != nullptr) {
    job.gone[gone->member] = {gone->in_order, gone->last_rounds};
    // Members may leave while a newcomer waits for their state.
    const bool left_alone =
        IsNewcomer(job, gone->member) && absl::StrContains(gone->reason, "no worker is left");
    if (!gone->in_order && !left_alone) {
      dropped_.push_back(absl::StrCat("member ", ToNumber(gone->member), ": ", gone->reason));
    }
  } else if (const auto* group = std::get_if<std::shared_ptr<const GroupPlan>>(&change.kind)) {
    job.groups[(*group)->id] = *group;
  } else if (const auto* epoch = std::get_if<Epoch>(&change.kind)) {
    OnEpoch(change.generation, job, *epoch);
  } else if (const auto* ended = std::get_if<server::MemberEnded>(&change.kind)) {
    job.ended[ended->member][ended->group] = ended->last_round;
  } else if (std::holds_alternative<server::JobClosed>(change.kind)) {
    closed_.insert(change.generation);
  }
}

bool Checker::IsNewcomer(const Job& job, MemberId member) {
  if (job.epochs.empty() || !job.epochs.back().Has(member)) return true;
  const std::optional<Handover>& handover = job.epochs.back().handover;
  return handover.has_value() &&
         std::find(handover->to.begin(), handover->to.end(), member) != handover->to.end();
}

void Checker::OnEpoch(Generation generation, Job& job, const Epoch& epoch) {
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
    for (const auto& [key, result] : results_) {
      if (key.generation != generation || key.group != first.group) continue;
      if (key.round >= first.round) Fail(key, "a later epoch begins with it, and it has closed");
    }
  }
  job.epochs.push_back(epoch);
}

const Epoch* Checker::EpochOf(const Job& job, GroupId group, Round round) {
  const Epoch* found = nullptr;
  for (const Epoch& epoch : job.epochs) {
    std::optional<Round> first;
    for (const GroupRound& listed : epoch.first_rounds) {
      if (listed.group == group) first = listed.round;
    }
    if (!first.has_value() || *first <= round) found = &epoch;
  }
  return found;
}

bool Checker::MayContribute(const Gone& gone, GroupId group, Round round) {
  return gone.in_order &&
         std::any_of(gone.last_rounds.begin(), gone.last_rounds.end(), [&](const GroupRound& last) {
           return last.group == group && round <= last.round;
         });
}

bool Checker::MayBeRefused(Generation generation, MemberId member) const {
  if (closed_.contains(generation)) return true;
  const auto job = jobs_.find(generation);
  return job == jobs_.end() || job->second.gone.contains(member);
}

Checker::RoundKey Checker::KeyOf(const PushHeader& header) {
  return {header.generation, header.group, header.chunk, header.round};
}

void Checker::OnPushWritten(const std::string& bytes) {
  absl::StatusOr<PushFrame> push = DecodePush({SpanOf(bytes)});
  if (!push.ok()) return world_.Fail("a worker writes a push that cannot be read");
  const RoundKey key = KeyOf(push->header);
  const MemberId member = push->header.member;
  std::vector<Contribution>& versions = contributions_[{key, member}];
  bool made_again = false;
  for (const Contribution& version : versions) {
    if (version.bytes == bytes) return;
    // Made for other members, or nothing that could be counted twice.
    made_again = made_again || version.header.epoch == push->header.epoch;
  }
  const Job& job = jobs_[key.generation];
  const auto group = job.groups.find(key.group);
  const bool may_be_other = group != job.groups.end() && !made_again &&
                            (group->second->spec.one_epoch || push->header.skip ||
                             std::holds_alternative<First>(group->second->spec.policy));
  if (!versions.empty() && !may_be_other) {
    Fail(key, absl::StrCat("the contribution of member ", ToNumber(member),
                           " was encoded again: it is sent as other bytes"));
  }
  versions.push_back({push->header, BytesOf(push->payload), bytes});
}

void Checker::OnPushDelivered(ServerIndex server, const PushHeader& push) {
  const auto job = jobs_.find(push.generation);
  if (job == jobs_.end()) return;
  const auto& known_gone = job->second.known_gone[server];
  const auto gone = known_gone.find(push.member);
  if (gone != known_gone.end() && !MayContribute(gone->second, push.group, push.round)) return;
  delivered_.insert({KeyOf(push), push.member});
}

void Checker::OnResult(const server::RoundResult& result, bool with_payload) {
  absl::StatusOr<UpdateFrame> update = DecodeUpdate({SpanOf(result.bare_header)});
  if (!update.ok()) return world_.Fail("a server sends an answer that cannot be read");
  const UpdateHeader& header = update->header;
  if (!header.error.ok()) return;
  const RoundKey key = {header.generation, header.group, header.chunk, header.round};
  std::string payload(reinterpret_cast<const char*>(result.payload.data()), result.payload.size());
  const auto [entry, first] = results_.try_emplace(key);
  Result& known = entry->second;
  if (first) {
    known.header = result.bare_header;
    known.decoded = header;
    known.payload = std::move(payload);
    return CheckFirst(key, result, known);
  }
  if (known.header != result.bare_header || (with_payload && known.payload != payload)) {
    Fail(key, absl::StrCat("it has two results: of ranks ",
                           absl::StrJoin(known.decoded.contributors, ","), " in epoch ",
                           known.decoded.epoch, ", and of ranks ",
                           absl::StrJoin(header.contributors, ","), " in epoch ", header.epoch));
  }
}

void Checker::CheckFirst(const RoundKey& key, const server::RoundResult& sent, Result& result) {
  const auto stored = Stored(*sent.slot);
  if (!stored.ok() || !stored->has_value() || (*stored)->round != key.round) {
    Fail(key, "its result is sent, and is not stored");
  }
  const auto job = jobs_.find(key.generation);
  if (job == jobs_.end() || !job->second.groups.contains(key.group)) {
    return Fail(key, "nobody has registered its group");
  }
  const GroupPlan& plan = *job->second.groups.at(key.group);
  std::vector<const Contribution*> contributions;
  if (!CheckContributors(key, job->second, plan, result.decoded, contributions)) return;
  CheckValues(key, plan, contributions, result);
  if (std::holds_alternative<Sync>(plan.spec.policy))
    furthest_ = std::max(furthest_, ToNumber(key.round));
}

bool Checker::CheckContributors(const RoundKey& key, const Job& job, const GroupPlan& plan,
                                const UpdateHeader& header,
                                std::vector<const Contribution*>& contributions) {
  const Epoch* epoch = EpochOf(job, key.group, key.round);
  if (epoch == nullptr || epoch->number != header.epoch) {
    Fail(key, absl::StrCat("it closed in epoch ", header.epoch, ", and belongs to epoch ",
                           epoch == nullptr ? 0 : epoch->number));
    return false;
  }
  const std::vector<uint32_t>& ranks = header.contributors;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= epoch->members.size() || (i > 0 && ranks[i] <= ranks[i - 1])) {
      Fail(key, absl::StrCat("its contributors are ranks ", absl::StrJoin(ranks, ",")));
      return false;
    }
    const Member& member = epoch->members[ranks[i]];
    const Contribution* contribution =
        FindContribution(key, member.id, plan.spec.one_epoch, epoch->number);
    if (contribution == nullptr || !delivered_.contains({key, member.id})) {
      Fail(key, absl::StrCat("it counts worker \"", member.name, "\" (member ", ToNumber(member.id),
                             "), ",
                             contribution == nullptr ? "which has contributed nothing"
                                                     : "which was no member any more"));
      return false;
    }
    if (contribution->header.incarnation != member.incarnation) {
      Fail(key, "it counts an incarnation that is not its epoch's");
      return false;
    }
    contributions.push_back(contribution);
  }
  if (!std::holds_alternative<Sync>(plan.spec.policy)) {
    if (ranks.size() == 1) return true;
    Fail(key, absl::StrCat("it takes one contribution, and has ", ranks.size()));
    return false;
  }
  for (uint32_t rank = 0; rank < epoch->members.size(); ++rank) {
    if (IsIn(ranks, rank) || MayBeMissing(key, job, epoch->members[rank].id)) continue;
    Fail(key, absl::StrCat("it closed without worker \"", epoch->members[rank].name, "\""));
    return false;
  }
  return true;
}

const Checker::Contribution* Checker::FindContribution(const RoundKey& key, MemberId member,
                                                       bool one_epoch, uint64_t epoch) const {
  const auto versions = contributions_.find({key, member});
  if (versions == contributions_.end()) return nullptr;
  for (const Contribution& version : versions->second) {
    if (version.header.skip) continue;
    if (!one_epoch || version.header.epoch == epoch || key.round == Round{0}) return &version;
  }
  return nullptr;
}

bool Checker::MayBeMissing(const RoundKey& key, const Job& job, MemberId member) const {
  const auto gone = job.gone.find(member);
  if (gone != job.gone.end() && !MayContribute(gone->second, key.group, key.round)) return true;
  const auto ended = job.ended.find(member);
  if (ended != job.ended.end()) {
    const auto last = ended->second.find(key.group);
    if (last != ended->second.end() && key.round > last->second) return true;
  }
  const auto versions = contributions_.find({key, member});
  return versions != contributions_.end() && delivered_.contains({key, member}) &&
         std::any_of(versions->second.begin(), versions->second.end(),
                     [](const Contribution& version) { return version.header.skip; });
}

const std::byte* Checker::PartOf(const Contribution& contribution, const Chunk& chunk,
                                 size_t span) {
  if (IsIn(contribution.header.absent_spans, static_cast<uint32_t>(span))) return nullptr;
  size_t elements = 0;
  for (size_t s = 0; s < span; ++s) {
    if (!IsIn(contribution.header.absent_spans, static_cast<uint32_t>(s))) {
      elements += chunk.spans[s].elements;
    }
  }
  return reinterpret_cast<const std::byte*>(contribution.payload.data()) +
         elements * SizeOf(chunk.dtype);
}

void Checker::CheckValues(const RoundKey& key, const GroupPlan& plan,
                          const std::vector<const Contribution*>& contributions, Result& result) {
  const Chunk& chunk = plan.layout.chunk(key.chunk);
  const size_t element = SizeOf(chunk.dtype);
  const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule);
  const Result* before = nullptr;
  if (optimizer != nullptr && key.round > Round{0}) {
    RoundKey previous = key;
    previous.round = Previous(key.round);
    const auto found = results_.find(previous);
    if (found == results_.end()) return Fail(key, "the round before was never answered");
    before = &found->second;
  }
  std::string expected(chunk.bytes(), '\0');
  const size_t slots = optimizer == nullptr ? 0 : SlotCount(*optimizer);
  result.slots.assign(slots, std::string(chunk.bytes(), '\0'));
  result.updates.assign(chunk.spans.size(), 0);
  bool anybody = false;
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    std::vector<WeightedSource> sources;
    for (const Contribution* contribution : contributions) {
      const std::byte* part = PartOf(*contribution, chunk, s);
      const double weight = contribution->header.weight;
      if (part != nullptr) sources.push_back({part, weight == 0 ? 1 : weight});
    }
    if (result.decoded.counts[s] != sources.size()) {
      return Fail(key, absl::StrCat("span ", s, " has a count of ", result.decoded.counts[s],
                                    ", and ", sources.size(), " contributions"));
    }
    anybody = anybody || !sources.empty();
    auto* const out = reinterpret_cast<std::byte*>(expected.data()) + span.chunk_offset * element;
    if (optimizer == nullptr || before == nullptr) {
      if (!sources.empty()) {
        const Reduction rule =
            optimizer == nullptr ? std::get<Reduction>(plan.spec.rule) : Reduction::kSum;
        reference::Reduce(chunk.dtype, rule, sources, span.elements, out);
      }
      continue;
    }
    // The simulation's optimizer groups are of f32.
    const size_t from = span.chunk_offset * element, bytes = span.elements * element;
    const auto at = [&](const std::string& all) {
      return reinterpret_cast<const std::byte*>(all.data()) + from;
    };
    std::vector<float> values = ValuesOf<float>(at(before->payload), span.elements);
    std::vector<std::vector<float>> state;
    for (const std::string& slot : before->slots) {
      state.push_back(ValuesOf<float>(at(slot), span.elements));
    }
    result.updates[s] = before->updates[s];
    if (!sources.empty()) {
      std::vector<float> gradient(span.elements);
      reference::Reduce(chunk.dtype, Reduction::kAverage, sources, span.elements,
                        reinterpret_cast<std::byte*>(gradient.data()));
      reference::Update(*optimizer, ++result.updates[s], gradient, values, state);
    }
    expected.replace(from, bytes, BytesOf(values));
    for (size_t i = 0; i < slots; ++i) result.slots[i].replace(from, bytes, BytesOf(state[i]));
  }
  if (!anybody && optimizer == nullptr) expected.clear();
  if (expected != result.payload) {
    Fail(key, absl::StrCat("its result is not that of ranks ",
                           absl::StrJoin(result.decoded.contributors, ",")));
  }
}

void Checker::OnAnswer(MemberId member, const UpdateFrame& answer) {
  const UpdateHeader& header = answer.header;
  if (!header.error.ok() || header.welcome.has_value()) return;
  const RoundKey key = {header.generation, header.group, header.chunk, header.round};
  const auto result = results_.find(key);
  if (result == results_.end()) return Fail(key, "a worker gets a result that nobody sent");
  const std::string payload = BytesOf(answer.payload);
  if (!(result->second.decoded == header) ||
      (!payload.empty() && payload != result->second.payload)) {
    return Fail(key, absl::StrCat("member ", ToNumber(member), " gets another result"));
  }
  const Job& job = jobs_.at(key.generation);
  const GroupPlan& plan = *job.groups.at(key.group);
  if (!std::holds_alternative<Sync>(plan.spec.policy)) return;
  if (FindContribution(key, member, plan.spec.one_epoch, header.epoch) == nullptr) return;
  const Epoch* epoch = EpochOf(job, key.group, key.round);
  for (uint32_t rank = 0; rank < epoch->members.size(); ++rank) {
    if (epoch->members[rank].id == member && IsIn(header.contributors, rank)) return;
  }
  Fail(key, absl::StrCat("member ", ToNumber(member),
                         " gets its result, and what it contributed is not in it"));
}

std::optional<Checker::Admission> Checker::AdmissionOf(Incarnation incarnation) const {
  const auto found = admissions_.find(incarnation);
  if (found == admissions_.end()) return std::nullopt;
  return found->second;
}

uint64_t Checker::epochs() const {
  uint64_t epochs = 0;
  for (const auto& [generation, job] : jobs_) epochs += job.epochs.size();
  return epochs;
}

bool Checker::lost_at_the_start() const { return furthest_ == 0 && !dropped_.empty(); }

Checker::TensorResult Checker::ResultOf(Generation generation, const std::string& group,
                                        uint64_t step, TensorId tensor) const {
  TensorResult out;
  const auto job = jobs_.find(generation);
  if (job == jobs_.end()) return out;
  const auto registered =
      std::find_if(job->second.groups.begin(), job->second.groups.end(),
                   [&group](const auto& entry) { return entry.second->spec.name == group; });
  if (registered == job->second.groups.end()) return out;
  const GroupPlan& plan = *registered->second;
  const bool on_server = std::holds_alternative<Optimizer>(plan.spec.rule);
  const Layout::ChunkRange range = plan.layout.ChunksOf(tensor);
  out.least = ~uint32_t{0};
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    const auto result = results_.find({generation, plan.id, ChunkId{c}, Round{step}});
    if (result == results_.end()) return {};
    const Chunk& chunk = plan.layout.chunk(ChunkId{c});
    const size_t s = chunk.SpanOf(tensor);
    const Span& span = chunk.spans[s];
    const size_t element = SizeOf(chunk.dtype);
    const uint32_t count = result->second.decoded.counts[s];
    out.least = std::min(out.least, count);
    out.most = std::max(out.most, count);
    if (count > 0 || on_server) {
      out.bytes +=
          result->second.payload.substr(span.chunk_offset * element, span.elements * element);
    } else {
      out.bytes += std::string(span.elements * element, '\0');
    }
  }
  if (out.most == 0 && !on_server) out.bytes.clear();
  out.known = true;
  return out;
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
