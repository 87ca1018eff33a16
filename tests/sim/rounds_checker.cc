#include "tests/sim/rounds_checker.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/kernels/reference.h"
#include "common/optim/optimizer.h"
#include "common/optim/reference.h"
#include "tests/sim/freight.h"
#include "tests/sim/stored_slot.h"

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

bool IsIn(const std::vector<MemberId>& members, MemberId member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

bool HoldsParameters(const GroupPlan& plan) {
  return std::holds_alternative<Optimizer>(plan.spec.rule);
}

bool TakesOne(const GroupPlan& plan) { return std::holds_alternative<First>(plan.spec.policy); }

// Returns true if the coordinator fixes the contributor set of this round. In round 0, which sets
// the first parameters, every contribution counts.
bool HasQuorum(const GroupPlan& plan, Round round) {
  return std::holds_alternative<Quorum>(plan.spec.policy) && round > Round{0};
}

// A late worker may receive the result of `newest_round` in place of the round that it asked for.
// Returns the header as if the worker had asked for that round.
UpdateHeader AsAsked(const GroupPlan& plan, UpdateHeader header) {
  if (header.newest_round != Round{0} && HoldsParameters(plan)) header.round = header.newest_round;
  header.newest_round = {};
  return header;
}

RoundKey KeyOf(const UpdateHeader& header) {
  return {header.generation, header.group, header.chunk, header.round};
}

// Returns the push of the first parameters that counts: the one of the lowest rank. There are
// several if a root has died, because the root of the next epoch then pushes its own.
std::vector<const Contribution*> OfRoot(const std::vector<const Contribution*>& by_rank) {
  const auto root = std::find_if(by_rank.begin(), by_rank.end(), [](const Contribution* one) {
    return one->header.absent_spans.empty();
  });
  if (root == by_rank.end()) return {};
  return {*root};
}

std::string MadeOf(const UpdateHeader& header) {
  return absl::StrCat("of ranks ", absl::StrJoin(header.contributors, ","), " in epoch ",
                      header.epoch);
}

// The optimizer of a span after this number of updates. The factors are powers of two, so that the
// learning rate is exact.
Optimizer RuleAfter(const GroupSpec& spec, TensorId tensor, double factor, uint64_t updates) {
  if (!spec.factors.empty()) factor *= spec.factors[ToNumber(tensor)].learning_rate;
  if (const auto* decay = std::get_if<StepDecay>(&spec.schedule.decay)) {
    for (const uint64_t milestone : decay->milestones) {
      if (updates >= milestone) factor *= decay->factor;
    }
  }
  Optimizer scaled = std::get<Optimizer>(spec.rule);
  std::visit([factor](auto& rule) { rule.learning_rate *= factor; }, scaled);
  return scaled;
}

}  // namespace

void RoundsChecker::Fail(const RoundKey& key, const std::string& what) {
  world_.Fail(absl::StrCat(ToString(key), ": ", what));
}

const RoundsChecker::Result* RoundsChecker::Find(const RoundKey& key) const {
  const auto found = results_.find(key);
  return found == results_.end() ? nullptr : &found->second;
}

void RoundsChecker::OnFirstRound(Generation generation, const GroupRound& first) {
  for (const auto& [key, result] : results_) {
    if (key.generation != generation || key.group != first.group) continue;
    if (key.round >= first.round) Fail(key, "a later epoch begins with it, and it has closed");
  }
}

void RoundsChecker::OnResult(const JobHistory& job, const GroupPlan& plan,
                             const UpdateHeader& header, const server::RoundResult& sent,
                             bool with_payload) {
  const UpdateHeader own = AsAsked(plan, header);
  const RoundKey key = KeyOf(own);
  if (header.newest_round != Round{0}) {
    RoundKey after = key;
    after.round = Next(header.newest_round);
    if (results_.contains(after)) {
      Fail(key, absl::StrCat("one that is late is told of round ", ToNumber(header.newest_round),
                             " as the newest, and the next has been sent"));
    }
  }
  std::string payload(reinterpret_cast<const char*>(sent.payload.data()), sent.payload.size());
  const auto [entry, first] = results_.try_emplace(key);
  Result& known = entry->second;
  if (first) {
    known.header = own;
    known.payload = std::move(payload);
    return CheckFirst(job, plan, key, sent, known);
  }
  if (!(known.header == own) || (with_payload && known.payload != payload)) {
    Fail(key, absl::StrCat("it has two results: ", MadeOf(known.header), ", and ", MadeOf(own)));
  }
}

void RoundsChecker::CheckFirst(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                               const server::RoundResult& sent, Result& result) {
  const auto stored = Stored(*sent.slot);
  if (!stored.ok() || !stored->has_value() || (*stored)->round != key.round) {
    Fail(key, "its result is sent, and is not stored");
  }
  std::vector<const Contribution*> made_of;
  if (!CheckContributors(job, plan, key, result.header, made_of)) return;
  CheckValues(job, plan, key, made_of, result);
  if (!TakesOne(plan)) furthest_ = std::max(furthest_, ToNumber(key.round));
}

bool RoundsChecker::CheckContributors(const JobHistory& job, const GroupPlan& plan,
                                      const RoundKey& key, const UpdateHeader& header,
                                      std::vector<const Contribution*>& made_of) {
  const Epoch* epoch = job.EpochOf(key.group, key.round);
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
        contributions_.Find(key, member.id, plan.spec.one_epoch, epoch->number);
    if (contribution == nullptr || !contributions_.delivered(key, member.id)) {
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
    made_of.push_back(contribution);
  }
  return CheckMissing(job, plan, key, *epoch, ranks);
}

bool RoundsChecker::CheckMissing(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                                 const Epoch& epoch, const std::vector<uint32_t>& ranks) {
  if (TakesOne(plan)) {
    if (ranks.size() == 1) return true;
    Fail(key, absl::StrCat("it takes one contribution, and has ", ranks.size()));
    return false;
  }
  // If no set is fixed, the round closes only when no member has data for it.
  const std::vector<MemberId>* const set =
      HasQuorum(plan, key.round) ? job.SetOf(key.group, key.round) : nullptr;
  for (uint32_t rank = 0; rank < epoch.members.size(); ++rank) {
    const Member& member = epoch.members[rank];
    const bool counts = IsIn(ranks, rank);
    const bool in_set = set == nullptr || IsIn(*set, member.id);
    if (counts ? in_set : !in_set || MayBeMissing(job, key, member.id)) continue;
    Fail(key, absl::StrCat(counts ? "it counts worker \"" : "it closed without worker \"",
                           member.name, "\"", counts ? ", which is not in its set" : ""));
    return false;
  }
  return true;
}

bool RoundsChecker::MayBeMissing(const JobHistory& job, const RoundKey& key,
                                 MemberId member) const {
  return !job.HasData(key.group, key.round, member) || contributions_.HasSkipped(key, member);
}

void RoundsChecker::CheckValues(const JobHistory& job, const GroupPlan& plan, const RoundKey& key,
                                const std::vector<const Contribution*>& made_of, Result& result) {
  const Chunk& chunk = plan.layout.chunk(key.chunk);
  const size_t element = SizeOf(chunk.dtype);
  const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule);
  const Result* before = nullptr;
  if (optimizer != nullptr && key.round > Round{0}) {
    RoundKey previous = key;
    previous.round = Previous(key.round);
    before = Find(previous);
    if (before == nullptr) return Fail(key, "the round before was never answered");
  }
  float factor = 1;
  if (NeedsNorms(plan.spec) && before != nullptr) {
    const auto told = job.gradient_factors.find({key.group, key.round});
    if (told == job.gradient_factors.end()) {
      return Fail(key, "its norms were not stored before it closed");
    }
    factor = static_cast<float>(told->second);
  }
  std::string expected(chunk.bytes(), '\0');
  const size_t slots = optimizer == nullptr ? 0 : SlotCount(*optimizer);
  result.slots.assign(slots, std::string(chunk.bytes(), '\0'));
  result.updates.assign(chunk.spans.size(), 0);
  const std::vector<const Contribution*> counted =
      optimizer != nullptr && before == nullptr ? OfRoot(made_of) : made_of;
  bool anybody = false;
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    std::vector<WeightedSource> sources;
    for (const Contribution* contribution : counted) {
      const std::byte* part = PartOf(*contribution, chunk, s);
      const double weight = contribution->header.weight;
      if (part != nullptr) sources.push_back({part, weight == 0 ? 1 : weight});
    }
    if (result.header.counts[s] != sources.size()) {
      return Fail(key, absl::StrCat("span ", s, " has a count of ", result.header.counts[s],
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
    // In the simulation, groups with an optimizer are f32.
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
      for (float& one : gradient) one *= factor;
      const Optimizer scaled =
          RuleAfter(plan.spec, span.tensor, job.EpochOf(key.group, key.round)->learning_rate.factor,
                    result.updates[s]);
      reference::Update(scaled, ++result.updates[s], gradient, values, state);
    }
    expected.replace(from, bytes, BytesOf(values));
    for (size_t i = 0; i < slots; ++i) result.slots[i].replace(from, bytes, BytesOf(state[i]));
  }
  if (!anybody && optimizer == nullptr) expected.clear();
  if (expected != result.payload) {
    Fail(key, absl::StrCat("its result is not that of ranks ",
                           absl::StrJoin(result.header.contributors, ",")));
  }
}

void RoundsChecker::OnAnswer(const JobHistory& job, const GroupPlan& plan, MemberId member,
                             const UpdateFrame& answer) {
  const UpdateHeader own = AsAsked(plan, answer.header);
  const RoundKey key = KeyOf(own);
  const Result* const result = Find(key);
  if (result == nullptr) return Fail(key, "a worker gets a result that nobody sent");
  const std::string payload = sim::BytesOf(answer.payload);
  if (!(result->header == own) || (!payload.empty() && payload != result->payload)) {
    return Fail(key, absl::StrCat("member ", ToNumber(member), " gets another result"));
  }
  if (TakesOne(plan)) return;
  if (contributions_.Find(key, member, plan.spec.one_epoch, own.epoch) == nullptr) return;
  const std::vector<MemberId>* const set =
      HasQuorum(plan, key.round) ? job.SetOf(key.group, key.round) : nullptr;
  if (set != nullptr && !IsIn(*set, member)) return;  // the worker was late
  const Epoch* epoch = job.EpochOf(key.group, key.round);
  for (uint32_t rank = 0; rank < epoch->members.size(); ++rank) {
    if (epoch->members[rank].id == member && IsIn(own.contributors, rank)) return;
  }
  Fail(key, absl::StrCat("member ", ToNumber(member),
                         " gets its result, and what it contributed is not in it"));
}

}  // namespace syncgrads::sim
