#include "server/core/plan_log/compact_plan.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CompactPlanTest : public ::testing::Test {
 protected:
  // Appends a change. `name` identifies it in the expectations.
  void Change(const std::string& name, decltype(PlanChange::kind) kind,
              const std::string& job = "iris", uint64_t generation = 1) {
    names_.push_back(name);
    records_.push_back(PlanChange{++sequence_, job, Generation{generation}, std::move(kind), 77});
  }
  void Add(const std::string& name, Stored record) {
    names_.push_back(name);
    records_.push_back(std::move(record));
  }
  void Admit(const std::string& name, uint32_t member, const std::string& job = "iris") {
    Hello hello;
    hello.job = job;
    Add(name, MemberAdmitted{hello, Generation{1}, MemberId{member}, name});
  }
  void Withdraw(const std::string& name, uint32_t member) {
    Add(name, MemberWithdrawn{"iris", Generation{1}, MemberId{member}});
  }
  static MemberGone Gone(uint32_t member, bool graceful = false) {
    return {MemberId{member}, IncarnationOf(member), "gone", graceful, {}};
  }
  static Epoch EpochOf(uint64_t number, const std::vector<uint32_t>& members) {
    Epoch epoch;
    epoch.number = number;
    for (uint32_t id : members) epoch.members.push_back({MemberId{id}, "w", IncarnationOf(id)});
    return epoch;
  }

  // Compacts the plan and returns the names of the records that remain, in order.
  // `oldest_epoch` is that of every job.
  std::vector<std::string> Left(const std::set<JobKey>& forgotten = {}, uint64_t oldest_epoch = 0) {
    const JobsNow now{forgotten, {{{"iris", Generation{1}}, oldest_epoch}}};
    // Records are matched by their identity: a change by its sequence number, the others by name,
    // member or address.
    std::vector<Stored> left = records_;
    CompactPlan(start_, left, now);
    std::vector<std::string> names;
    size_t next = 0;
    for (size_t i = 0; i < records_.size() && next < left.size(); ++i) {
      if (!Same(records_[i], left[next])) continue;
      names.push_back(names_[i]);
      ++next;
    }
    EXPECT_EQ(next, left.size()) << "in order, and none that was not there";
    std::vector<Stored> again = left;
    CompactPlan(start_, again, now);
    EXPECT_EQ(again.size(), left.size()) << "there is no more to remove";
    return names;
  }

  PlanStart start_;

 private:
  static bool Same(const Stored& a, const Stored& b) {
    if (a.index() != b.index()) return false;
    if (const auto* change = std::get_if<PlanChange>(&a)) {
      return change->sequence == std::get<PlanChange>(b).sequence;
    }
    if (const auto* admitted = std::get_if<MemberAdmitted>(&a)) {
      return admitted->name == std::get<MemberAdmitted>(b).name;
    }
    if (const auto* withdrawn = std::get_if<MemberWithdrawn>(&a)) {
      return withdrawn->member == std::get<MemberWithdrawn>(b).member;
    }
    if (const auto* ready = std::get_if<MemberReady>(&a)) {
      return ready->member == std::get<MemberReady>(b).member;
    }
    if (const auto* readmitted = std::get_if<WorkerReadmitted>(&a)) {
      return readmitted->worker == std::get<WorkerReadmitted>(b).worker;
    }
    if (const auto* rate = std::get_if<LearningRateSet>(&a)) {
      return rate->factor == std::get<LearningRateSet>(b).factor;
    }
    return std::get<ServerSeen>(a).address == std::get<ServerSeen>(b).address;
  }

  uint64_t sequence_ = 0;
  std::vector<std::string> names_;
  std::vector<Stored> records_;
};

TEST_F(CompactPlanTest, OfStepsTheNewestOfEachGroupIsLeft) {
  Change("opened", JobOpened{});
  Change("a1", QuorumSet{GroupId{0}, Round{1}, {}});
  Change("b1", QuorumSet{GroupId{1}, Round{1}, {}});
  Change("n1", StepNorms{GroupId{0}, Round{1}, 1, 1, {}});
  Change("a2", QuorumSet{GroupId{0}, Round{2}, {}});
  Change("other", QuorumSet{GroupId{0}, Round{1}, {}}, "other");
  Change("n2", StepNorms{GroupId{0}, Round{2}, 1, 1, {}});
  EXPECT_THAT(Left(), ElementsAre("opened", "b1", "a2", "other", "n2"));
}

TEST_F(CompactPlanTest, OfEndsTheNewestOfEachMemberAndGroupIsLeft) {
  Change("opened", JobOpened{});
  Change("first", MemberEnded{MemberId{0}, GroupId{0}, Round{5}, true});
  Change("other member", MemberEnded{MemberId{1}, GroupId{0}, Round{5}, true});
  Change("other group", MemberEnded{MemberId{0}, GroupId{1}, Round{5}, true});
  Change("second", MemberEnded{MemberId{0}, GroupId{0}, Round{4}, true});
  EXPECT_THAT(Left(), ElementsAre("opened", "other member", "other group", "second"));
}

TEST_F(CompactPlanTest, AProposalThatWasAnsweredIsNotNeeded) {
  Change("opened", JobOpened{});
  Change("epoch 1", EpochOf(1, {0, 1}));
  Change("proposal 2", EpochProposed{2, ""});
  Change("epoch 2", EpochOf(2, {0}));
  Change("proposal 3", EpochProposed{3, ""});
  EXPECT_THAT(Left(), ElementsAre("opened", "epoch 1", "epoch 2", "proposal 3"));
}

// Epoch e has the members 0 and e, and begins with round e. Member e has gone before epoch e + 1.
class CompactEpochsTest : public CompactPlanTest {
 protected:
  static constexpr uint32_t kEpochs = 100;

  // `change` may change an epoch before it is added.
  void Begin(
      bool coordinator, absl::FunctionRef<void(Epoch&)> change = [](Epoch&) {}) {
    Change("opened", JobOpened{});
    if (coordinator) Admit("admitted 0", 0);
    for (uint32_t e = 1; e <= kEpochs; ++e) {
      if (coordinator) Admit(absl::StrCat("admitted ", e), e);
      Epoch epoch = EpochOf(e, {0, e});
      epoch.first_rounds = {{GroupId{0}, Round{e}}};
      change(epoch);
      Change(absl::StrCat("epoch ", e), epoch);
      Change(absl::StrCat("ended ", e), MemberEnded{MemberId{e}, GroupId{0}, Round{e}});
      Change(absl::StrCat("gone ", e), Gone(e));
    }
  }

  // The numbers of the records that are left whose names begin with `kind`.
  std::vector<uint32_t> NumbersOf(const std::string& kind, uint64_t oldest_epoch) {
    std::vector<uint32_t> numbers;
    for (const std::string& name : Left({}, oldest_epoch)) {
      uint32_t number = 0;
      const std::string prefix = kind + " ";
      if (absl::StartsWith(name, prefix) && absl::SimpleAtoi(name.substr(prefix.size()), &number)) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }

  static std::vector<uint32_t> From(uint32_t first) {
    std::vector<uint32_t> numbers(kEpochs - first + 1);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
};

TEST_F(CompactEpochsTest, EpochsStayIfNobodyKnowsWhichRoundsAreOpen) {
  Begin(/*coordinator=*/true);
  EXPECT_EQ(NumbersOf("epoch", 0), From(1));
}

TEST_F(CompactEpochsTest, AnEpochThatAnOpenRoundNeedsStaysAndSoDoAllLaterOnes) {
  Begin(/*coordinator=*/true);
  EXPECT_EQ(NumbersOf("epoch", 7), From(7));
}

TEST_F(CompactEpochsTest, TheNewestEpochsStayForMembersThatReconnect) {
  Begin(/*coordinator=*/true);
  EXPECT_EQ(NumbersOf("epoch", 100), From(36)) << "the newest one and 64 before it";
}

TEST_F(CompactEpochsTest, EpochsWithoutRoundsAreNotNeeded) {
  // Epochs 10 to 30 begin while round 10 is open.
  Begin(/*coordinator=*/true, [](Epoch& epoch) {
    if (epoch.number < 10 || epoch.number > 30) return;
    epoch.first_rounds = {{GroupId{0}, Round{10}}};
  });
  std::vector<uint32_t> expected = From(30);
  expected.insert(expected.begin(), {7, 8, 9});
  EXPECT_EQ(NumbersOf("epoch", 7), expected);
}

TEST_F(CompactEpochsTest, NothingIsLeftOfMembersThatWereInRemovedEpochs) {
  Begin(/*coordinator=*/true);
  EXPECT_EQ(NumbersOf("gone", 100), From(36));
  EXPECT_EQ(NumbersOf("ended", 100), From(36));
  EXPECT_THAT(NumbersOf("admitted", 100), ElementsAre(0, 100))
      << "the one who is there, and the one with the largest number";
}

TEST_F(CompactEpochsTest, AFollowerRemovesTheSame) {
  Begin(/*coordinator=*/false);
  EXPECT_EQ(NumbersOf("epoch", 100), From(36));
  EXPECT_EQ(NumbersOf("gone", 100), From(36));
  EXPECT_EQ(NumbersOf("ended", 100), From(36));
}

TEST_F(CompactEpochsTest, TheEpochOfANewcomerThatIsNotReadyStays) {
  Begin(/*coordinator=*/true, [](Epoch& epoch) {
    if (epoch.number == 3 || epoch.number == 5) {
      epoch.handover = Handover{MemberId{1}, {MemberId{epoch.number == 3 ? 0u : 5u}}, {}};
    }
  });
  std::vector<uint32_t> expected = From(36);
  expected.insert(expected.begin(), 3);
  EXPECT_EQ(NumbersOf("epoch", 100), expected) << "member 5 has gone, member 0 has not";
  Add("0 ready", MemberReady{"iris", Generation{1}, MemberId{0}, GroupId{0}});
  EXPECT_EQ(NumbersOf("epoch", 100), From(36));
}

TEST_F(CompactEpochsTest, AChangeThatServersMayNotHaveAppliedStays) {
  Begin(/*coordinator=*/true);
  Change("late 3", Gone(3));
  EXPECT_THAT(NumbersOf("late", 100), ElementsAre(3)) << "though member 3 is only in epoch 3";
}

TEST_F(CompactEpochsTest, AnEvictionIsRemembered) {
  Begin(/*coordinator=*/true);
  MemberGone evicted = Gone(4);
  evicted.evicted = true;
  Change("evicted 4", evicted);
  EXPECT_THAT(NumbersOf("evicted", 100), ElementsAre(4));
  EXPECT_THAT(NumbersOf("admitted", 100), ElementsAre(0, 4, 100));
}

TEST_F(CompactPlanTest, AdmissionsOfThoseWhoWereDroppedBeforeThePresentEpochAreNotNeeded) {
  Change("opened", JobOpened{});
  for (uint32_t id = 0; id < 5; ++id) Admit("m" + std::to_string(id), id);
  Change("epoch 1", EpochOf(1, {0, 1, 2, 3, 4}));
  Change("0 gone", Gone(0));
  Change("1 gone", Gone(1));
  Change("2 left", Gone(2, /*graceful=*/true));
  Change("epoch 2", EpochOf(2, {3, 4}));
  Change("3 gone", Gone(3));
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m2", "m3", "m4", "epoch 1", "0 gone", "1 gone",
                                  "2 left", "epoch 2", "3 gone"))
      << "the first makes the job, 2 may ask, and an epoch without 3 has to be begun";
}

TEST_F(CompactPlanTest, TheAdmissionOfAnEvictedMemberStays) {
  Change("opened", JobOpened{});
  for (uint32_t id = 0; id < 4; ++id) Admit("m" + std::to_string(id), id);
  Change("epoch 1", EpochOf(1, {0, 1, 2, 3}));
  Change("1 dropped", Gone(1));
  MemberGone evicted = Gone(2);
  evicted.evicted = true;
  Change("2 evicted", evicted);
  Change("epoch 2", EpochOf(2, {0, 3}));
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m2", "m3", "epoch 1", "1 dropped", "2 evicted",
                                  "epoch 2"));
}

TEST_F(CompactPlanTest, AnEvictionBeforeTheStartIsRemovedWithItsReadmission) {
  Change("opened", JobOpened{});
  for (uint32_t id = 0; id < 3; ++id) Admit("m" + std::to_string(id), id);
  MemberGone evicted = Gone(1);
  evicted.evicted = true;
  Change("1 evicted", evicted);
  Withdraw("-1", 1);
  Change("epoch 1", EpochOf(1, {0, 2}));
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m1", "m2", "1 evicted", "-1", "epoch 1"))
      << "the admission of an evicted member tells which worker to refuse";
  Add("1 readmitted", WorkerReadmitted{"iris", Generation{1}, "m1"});
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m2", "epoch 1"));
  Change("closed", JobClosed{});
  EXPECT_THAT(Left({{"iris", Generation{1}}}), ElementsAre("closed"));
}

TEST_F(CompactPlanTest, AReadmissionStaysWithTheEvictionThatItLifts) {
  Change("opened", JobOpened{});
  Admit("w", 0);
  MemberGone evicted = Gone(0);
  evicted.evicted = true;
  Change("0 evicted", evicted);
  Withdraw("-0", 0);
  Admit("m1", 1);
  Add("w readmitted", WorkerReadmitted{"iris", Generation{1}, "w"});
  Add("stranger readmitted", WorkerReadmitted{"iris", Generation{1}, "stranger"});
  Change("epoch 1", EpochOf(1, {1}));
  EXPECT_THAT(Left(),
              ElementsAre("opened", "w", "0 evicted", "-0", "m1", "w readmitted", "epoch 1"))
      << "the job is made from the first admission";
}

TEST_F(CompactPlanTest, AnEvictionAfterAReadmissionStays) {
  Change("opened", JobOpened{});
  Admit("m0", 0);
  Admit("w", 1);
  MemberGone evicted = Gone(1);
  evicted.evicted = true;
  Change("1 evicted", evicted);
  Withdraw("-1", 1);
  Add("w readmitted", WorkerReadmitted{"iris", Generation{1}, "w"});
  Admit("w again", 2);
  evicted = Gone(2);
  evicted.evicted = true;
  Change("2 evicted", evicted);
  Withdraw("-2", 2);
  Admit("m3", 3);
  Change("epoch 1", EpochOf(1, {0, 3}));
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "w again", "2 evicted", "-2", "m3", "epoch 1"));
}

TEST_F(CompactPlanTest, AFollowerNeedsNoMemberThatIsInNoEpoch) {
  Change("opened", JobOpened{});
  MemberGone evicted = Gone(1);
  evicted.evicted = true;
  Change("1 evicted", evicted);
  Change("epoch 1", EpochOf(1, {0, 2}));
  evicted = Gone(2);
  evicted.evicted = true;
  Change("2 evicted", evicted);
  Change("epoch 2", EpochOf(2, {0}));
  EXPECT_THAT(Left(), ElementsAre("opened", "epoch 1", "2 evicted", "epoch 2"));
}

TEST_F(CompactPlanTest, OfLearningRatesTheNewestStaysAsLongAsTheJob) {
  Change("opened", JobOpened{});
  Admit("m0", 0);
  Add("rate 1", LearningRateSet{"iris", Generation{1}, 0.5});
  Add("rate 2", LearningRateSet{"iris", Generation{1}, 0.25});
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "rate 2"));
  Change("closed", JobClosed{});
  EXPECT_THAT(Left({{"iris", Generation{1}}}), ElementsAre("closed"));
}

TEST_F(CompactPlanTest, AWithdrawnMemberLeavesItsNumberIfItIsTheLargest) {
  Change("opened", JobOpened{});
  for (uint32_t id = 0; id < 4; ++id) Admit("m" + std::to_string(id), id);
  Withdraw("-1", 1);
  Withdraw("-3", 3);
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m2", "m3", "-3"));
}

TEST_F(CompactPlanTest, TheFirstWhoIsReadyNamesTheGroupWithTheState) {
  Change("opened", JobOpened{});
  for (uint32_t id = 0; id < 4; ++id) Admit("m" + std::to_string(id), id);
  Change("epoch 1", EpochOf(1, {0, 1, 2, 3}));
  Add("1 ready", MemberReady{"iris", Generation{1}, MemberId{1}, GroupId{0}});
  Add("2 ready", MemberReady{"iris", Generation{1}, MemberId{2}, GroupId{0}});
  Change("1 gone", Gone(1));
  Change("2 gone", Gone(2));
  Change("epoch 2", EpochOf(2, {0, 3}));
  EXPECT_THAT(Left(), ElementsAre("opened", "m0", "m1", "m3", "epoch 1", "1 ready", "1 gone",
                                  "2 gone", "epoch 2"));
}

TEST_F(CompactPlanTest, AClosedJobIsNeededUntilNobodyAsksForIt) {
  Change("old", JobOpened{}, "old");
  Admit("m", 0, "old");
  Change("closed", JobClosed{"done", false}, "old");
  Change("opened", JobOpened{});
  EXPECT_THAT(Left(), ElementsAre("old", "m", "closed", "opened"));
  EXPECT_THAT(start_.generations, IsEmpty());
  EXPECT_THAT(Left({{"old", Generation{1}}}), ElementsAre("opened"));
  EXPECT_THAT(start_.generations, ElementsAre(testing::Pair("old", Generation{1})));
}

TEST_F(CompactPlanTest, AFollowerNeedsNothingOfAClosedJob) {
  Change("old", JobOpened{}, "old");
  Change("closed", JobClosed{"done", false}, "old");
  Change("opened", JobOpened{});
  EXPECT_THAT(Left(), ElementsAre("opened"));
  EXPECT_THAT(start_.generations, IsEmpty()) << "they are the coordinator's";
}

TEST_F(CompactPlanTest, OtherServersMayHaveToBeToldThatAJobIsClosed) {
  Add("seen", ServerSeen{ServerIndex{1}, "a:1", Incarnation{1}});
  Add("seen again", ServerSeen{ServerIndex{1}, "b:1", Incarnation{1}});
  Change("old", JobOpened{}, "old");
  Admit("m", 0, "old");
  Change("closed", JobClosed{"done", false}, "old");
  Change("opened", JobOpened{});
  EXPECT_THAT(Left({{"old", Generation{1}}}), ElementsAre("seen again", "closed", "opened"));
}

TEST_F(CompactPlanTest, TheNewestChangeIsWhereThePlanStands) {
  Change("old", JobOpened{}, "old");
  Change("closed", JobClosed{"done", true}, "old");
  EXPECT_THAT(Left(), ElementsAre("closed")) << "and says that all is done";
}

}  // namespace
}  // namespace syncgrads::server
