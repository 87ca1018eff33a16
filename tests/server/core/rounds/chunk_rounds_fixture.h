// A fixture for the rounds of one chunk, in which the test controls the members, the roster and the
// clock.

#ifndef SYNCGRADS_TESTS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_FIXTURE_H_
#define SYNCGRADS_TESTS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_FIXTURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/rounds/chunk_rounds.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {

// One chunk, its members, and a sink for each member. Not thread-safe.
class Rounds {
 public:
  Rounds(uint32_t members, GroupPlan plan) : plan_(std::move(plan)) {
    roster_.Add(EpochOfSize(members));
    current_.Set(std::make_shared<Roster>(roster_));
    rounds_.emplace(plan_, ChunkId{0}, Generation{1}, current_, clock_);
    for (uint32_t i = 0; i < members; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
  }
  explicit Rounds(uint32_t members, UpdateRule rule = Reduction::kSum)
      : Rounds(members, OneTensor(DType::kF64, 1, std::move(rule))) {}

  void Push(const PushHeader& header, const std::string& bytes) {
    rounds_->Push(header, PayloadOf(bytes), sinks_[ToNumber(header.member)]);
  }
  void Push(uint32_t member, uint64_t round, double value) {
    Push(PushOf(member, round), BytesOf<double>({value}));
  }
  void Skip(uint32_t member, uint64_t round) { Push(SkipOf(member, round), ""); }
  void PushTo(std::shared_ptr<RecordingSink> sink, const PushHeader& header, double value) {
    rounds_->Push(header, PayloadOf(header.skip ? "" : BytesOf<double>({value})), std::move(sink));
  }

  // Changes the roster and passes it to the chunk, as a server does.
  template <typename Change>
  void Tell(Change change) {
    Replace(change);
    rounds_->Finish(rounds_->TakeRoster());
  }
  // Changes the roster. The chunk finds the new one when it is used next.
  template <typename Change>
  void Replace(Change change) {
    change(roster_);
    current_.Set(std::make_shared<Roster>(roster_));
  }
  void End(uint32_t member, uint64_t last_round, bool follows = true) {
    Tell([&](Roster& r) { r.End({MemberId{member}, plan_.id, Round{last_round}, follows}); });
  }
  void Drop(uint32_t member) {
    Tell([&](Roster& roster) {
      roster.Remove({MemberId{member}, IncarnationOf(member), "lease of 30s ended", false, {}});
    });
  }
  void Leave(uint32_t member, uint64_t last_round) {
    Tell([&](Roster& roster) {
      roster.Remove(
          {MemberId{member}, IncarnationOf(member), "left", true, {{plan_.id, Round{last_round}}}});
    });
  }
  // Begins an epoch without the members `gone` at the round `first`.
  void NewEpoch(std::vector<uint32_t> gone, uint64_t first) {
    Epoch epoch = *roster_.newest_epoch();
    ++epoch.number;
    std::erase_if(epoch.members, [&gone](const Member& member) {
      return std::count(gone.begin(), gone.end(), ToNumber(member.id)) > 0;
    });
    epoch.first_rounds = {{plan_.id, Round{first}}};
    Tell([&](Roster& roster) { roster.Add(epoch); });
    rounds_->Finish(rounds_->EndHold());
  }

  RecordingSink& sink(uint32_t member) { return *sinks_[member]; }
  void NewStream(uint32_t member) { sinks_[member] = std::make_shared<RecordingSink>(); }
  size_t answers(uint32_t member) const { return sinks_[member]->count(); }
  double value(uint32_t member) const {
    const std::vector<double> values = sinks_[member]->values<double>();
    EXPECT_EQ(values.size(), 1u) << sinks_[member]->error();
    return values.empty() ? -1 : values[0];
  }
  std::vector<uint32_t> counts(uint32_t member) const {
    return sinks_[member]->last().header.counts;
  }
  // The newest roster.
  std::shared_ptr<const Roster> roster() const { return current_.Get().roster; }
  ChunkRounds& operator*() { return *rounds_; }
  ChunkRounds* operator->() { return &*rounds_; }
  FakeClock& clock() { return clock_; }

 private:
  FakeClock clock_;
  GroupPlan plan_;
  Roster roster_;
  CurrentRoster current_{nullptr};
  std::optional<ChunkRounds> rounds_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_CORE_ROUNDS_CHUNK_ROUNDS_FIXTURE_H_
