#include "tests/sim/versions_checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/sim/freight.h"
#include "tests/sim/stored_slot.h"

namespace syncgrads::sim {
namespace {

RoundKey At(RoundKey key, Round round) {
  key.round = round;
  return key;
}

RoundKey KeyOf(const UpdateHeader& header) {
  return {header.generation, header.group, header.chunk, header.round};
}

Round ClockOf(const std::map<MemberId, Round>& clocks, MemberId member) {
  const auto clock = clocks.find(member);
  return clock == clocks.end() ? Round{0} : clock->second;
}

// Adds `factor` times the contribution to `values`, for each span that is present. The elements are
// f32.
void Add(const Contribution& contribution, const Chunk& chunk, float factor,
         std::vector<float>& values) {
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    const std::byte* part = PartOf(contribution, chunk, s);
    if (part == nullptr) continue;
    const Span& span = chunk.spans[s];
    for (uint64_t i = 0; i < span.elements; ++i) {
      float value;
      std::memcpy(&value, part + i * sizeof(float), sizeof(float));
      values[span.chunk_offset + i] += factor * value;
    }
  }
}

}  // namespace

void VersionsChecker::Fail(const RoundKey& key, const std::string& what) {
  world_.Fail(absl::StrCat(ToString(key), ": ", what));
}

void VersionsChecker::OnResult(const JobHistory& job, const GroupPlan& plan, MemberId member,
                               const UpdateHeader& header, const server::RoundResult& sent) {
  const RoundKey key = KeyOf(header);
  const auto stored = Stored(*sent.slot);
  if (!stored.ok() || !stored->has_value()) {
    return Fail(key, "a version is sent, and is not stored");
  }
  const server::RoundRecord& record = **stored;
  const std::string values(reinterpret_cast<const char*>(sent.payload.data()), sent.payload.size());
  if (!CheckVersion(plan, key, record, values)) return;
  CheckCounts(plan, member, header);
  const Version& version = newest_[{key.generation, key.group, key.chunk}];
  if (contributions_.Find(key, member) != nullptr && key.round > Round{0} &&
      ClockOf(version.clocks, member) < key.round) {
    Fail(key, absl::StrCat("member ", ToNumber(member),
                           " is answered, and what it contributed is not applied"));
  }
  CheckBound(job, std::get<Staleness>(plan.spec.policy), member, key);
  sent_[{key, member}].push_back(values);
  ++results_;
  furthest_ = std::max(furthest_, ToNumber(key.round));
}

void VersionsChecker::CheckCounts(const GroupPlan& plan, MemberId member,
                                  const UpdateHeader& header) {
  const RoundKey key = KeyOf(header);
  if (key.round == Round{0}) return;
  const Contribution* const contribution = contributions_.Find(key, member);
  const Chunk& chunk = plan.layout.chunk(key.chunk);
  for (size_t s = 0; s < chunk.spans.size(); ++s) {
    const bool counts = contribution != nullptr && PartOf(*contribution, chunk, s) != nullptr;
    if (header.counts[s] == (counts ? 1u : 0u)) continue;
    return Fail(key, absl::StrCat("span ", s, " of member ", ToNumber(member),
                                  "'s answer has a count of ", header.counts[s]));
  }
}

bool VersionsChecker::CheckVersion(const GroupPlan& plan, const RoundKey& key,
                                   const server::RoundRecord& record, const std::string& values) {
  std::map<MemberId, Round> clocks;
  for (const server::MemberClock& one : record.clocks) clocks[one.member] = one.clock;
  const auto [entry, first] = newest_.try_emplace({key.generation, key.group, key.chunk});
  Version& newest = entry->second;
  if (!first && record.round == newest.number) {
    if (clocks == newest.clocks && values == newest.values) return true;
    Fail(key, absl::StrCat("there are two versions ", ToNumber(record.round)));
    return false;
  }
  if (!first && record.round < newest.number) {
    Fail(key, absl::StrCat("version ", ToNumber(record.round), " is sent after version ",
                           ToNumber(newest.number)));
    return false;
  }
  for (const auto& [member, clock] : newest.clocks) {
    if (ClockOf(clocks, member) >= clock) continue;
    Fail(key, absl::StrCat("the clock of member ", ToNumber(member), " goes back from ",
                           ToNumber(clock), " to ", ToNumber(ClockOf(clocks, member))));
    return false;
  }
  if (first) {
    if (record.round != Round{0} || !WereGiven(key, clocks, values)) {
      Fail(key, absl::StrCat("version ", ToNumber(record.round),
                             " is the first, and not what a member gave"));
      return false;
    }
    newest.first = values;
  }
  const std::optional<std::string> expected =
      Sum(plan, key, clocks, ToNumber(record.round), newest.first);
  if (!expected.has_value()) return false;
  if (*expected != values) {
    Fail(key, absl::StrCat("version ", ToNumber(record.round),
                           " is not what the contributions come to that it counts"));
    return false;
  }
  newest.number = record.round;
  newest.clocks = std::move(clocks);
  newest.values = values;
  return true;
}

bool VersionsChecker::WereGiven(const RoundKey& key, const std::map<MemberId, Round>& clocks,
                                const std::string& values) const {
  const RoundKey push = At(key, Round{0});
  return std::any_of(clocks.begin(), clocks.end(), [&](const auto& clock) {
    const Contribution* const given = contributions_.Find(push, clock.first);
    return given != nullptr && contributions_.delivered(push, clock.first) &&
           given->payload == values;
  });
}

std::optional<std::string> VersionsChecker::Sum(const GroupPlan& plan, const RoundKey& key,
                                                const std::map<MemberId, Round>& clocks,
                                                uint64_t count, const std::string& first) {
  const Chunk& chunk = plan.layout.chunk(key.chunk);
  const auto rate =
      static_cast<float>(std::get<Sgd>(std::get<Optimizer>(plan.spec.rule)).learning_rate);
  std::vector<float> values(first.size() / sizeof(float));
  std::memcpy(values.data(), first.data(), first.size());
  uint64_t applied = 0;
  for (const auto& [member, clock] : clocks) {
    for (Round at{1}; at <= clock; at = Next(at)) {
      const RoundKey push = At(key, at);
      const Contribution* const contribution = contributions_.Find(push, member);
      if (contribution == nullptr && !contributions_.Of(push, member).empty()) continue;
      if (contribution == nullptr || !contributions_.delivered(push, member)) {
        Fail(push, absl::StrCat("it counts what member ", ToNumber(member),
                                contribution == nullptr ? " has not contributed"
                                                        : " sent when it was no member any more"));
        return std::nullopt;
      }
      ++applied;
      Add(*contribution, chunk, -rate, values);
    }
  }
  if (applied == count) {
    return std::string(reinterpret_cast<const char*>(values.data()), first.size());
  }
  Fail(key, absl::StrCat("version ", count, " counts ", applied, " contributions"));
  return std::nullopt;
}

void VersionsChecker::CheckBound(const JobHistory& job, const Staleness& staleness, MemberId member,
                                 const RoundKey& key) {
  if (!staleness.bound.has_value() || ToNumber(key.round) <= *staleness.bound) return;
  // Members that follow or have gone are not bound.
  if (!job.HasData(key.group, key.round, member)) return;
  const Round least{ToNumber(key.round) - *staleness.bound};
  const Version& version = newest_[{key.generation, key.group, key.chunk}];
  for (const Member& other : job.epochs.back().members) {
    // The other member is waited for only if it had data in step `least`; it then had data in all
    // earlier steps too.
    if (job.gone.contains(other.id) || !job.HasData(key.group, least, other.id)) continue;
    const RoundKey push = At(key, least);
    const bool applied = contributions_.Find(push, other.id) == nullptr
                             ? contributions_.delivered(push, other.id)
                             : ClockOf(version.clocks, other.id) >= least;
    if (applied) continue;
    Fail(key, absl::StrCat("member ", ToNumber(member), " is answered, and worker \"", other.name,
                           "\" has not come to clock ", ToNumber(least)));
  }
}

void VersionsChecker::OnAnswer(MemberId member, const UpdateFrame& answer) {
  const RoundKey key = KeyOf(answer.header);
  std::string values = BytesOf(answer.payload);
  const std::vector<std::string>& sent = sent_[{key, member}];
  if (sent.empty()) return Fail(key, "a worker gets a version that nobody sent it");
  if (values.empty()) return;
  if (std::find(sent.begin(), sent.end(), values) == sent.end()) {
    return Fail(key, absl::StrCat("member ", ToNumber(member), " gets another version"));
  }
  received_[{key, member}].push_back(std::move(values));
}

bool VersionsChecker::MayHave(const GroupPlan& plan, Generation generation, MemberId member,
                              Round clock, TensorId tensor, const std::string& values) const {
  const Layout::ChunkRange range = plan.layout.ChunksOf(tensor);
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    const auto received = received_.find({{generation, plan.id, ChunkId{c}, clock}, member});
    if (received == received_.end()) return false;
    const Chunk& chunk = plan.layout.chunk(ChunkId{c});
    const Span& span = chunk.spans[chunk.SpanOf(tensor)];
    const size_t bytes = span.elements * sizeof(float);
    const std::string_view part =
        std::string_view(values).substr(span.tensor_offset * sizeof(float), bytes);
    const bool any =
        std::any_of(received->second.begin(), received->second.end(), [&](const std::string& one) {
          return std::string_view(one).substr(span.chunk_offset * sizeof(float), bytes) == part;
        });
    if (!any) return false;
  }
  return true;
}

}  // namespace syncgrads::sim
