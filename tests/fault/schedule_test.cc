#include "tests/fault/schedule.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "gtest/gtest.h"

namespace syncgrads::fault {
namespace {

constexpr uint64_t kSeeds = 400;

TEST(ScheduleTest, ASeedIsOneSchedule) {
  std::set<std::string> all;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::string text = ToString(DrawSchedule(seed));
    EXPECT_EQ(text, ToString(DrawSchedule(seed)));
    all.insert(text);
  }
  EXPECT_EQ(all.size(), kSeeds);
}

TEST(ScheduleTest, HalfOfThemLeaveEveryMembershipAlone) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
    EXPECT_EQ(schedule.servers_only, seed % 2 == 0);
    const bool ends = absl::c_any_of(
        schedule.faults, [&](const Fault& fault) { return EndsMembership(schedule, fault); });
    const bool kills_a_server = absl::c_any_of(schedule.faults, [](const Fault& fault) {
      return fault.kind == FaultKind::kKill &&
             fault.targets.front().role == ProcessId::Role::kServer;
    });
    const bool hits_a_worker = absl::c_any_of(schedule.faults, [](const Fault& fault) {
      return fault.targets.front().role == ProcessId::Role::kWorker;
    });
    if (schedule.servers_only) {
      EXPECT_FALSE(ends) << seed;
      EXPECT_TRUE(kills_a_server) << seed;
    } else {
      EXPECT_TRUE(hits_a_worker) << seed;
    }
  }
}

TEST(ScheduleTest, TheSurvivorSurvives) {
  int without = 0;
  for (uint64_t seed = 1; seed < kSeeds; seed += 2) {
    const Schedule schedule = DrawSchedule(seed);
    if (schedule.survivor < 0) ++without;
    for (const Fault& fault : schedule.faults) {
      if (!EndsMembership(schedule, fault)) continue;
      EXPECT_NE(fault.targets.front(), WorkerId(schedule.survivor)) << seed;
    }
  }
  EXPECT_GT(without, 0);
  EXPECT_LT(without, static_cast<int>(kSeeds) / 8);
}

TEST(ScheduleTest, EverythingIsDrawn) {
  std::set<FaultKind> kinds;
  std::set<Network> networks;
  std::set<JobKind> jobs;
  std::set<Trait> traits;
  std::set<ProcessId> targets;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
    networks.insert(schedule.network);
    jobs.insert(schedule.job);
    traits.insert(schedule.job.trait);
    if (schedule.job.trait >= Trait::kFloat16 || schedule.job.trait == Trait::kNotElastic) {
      EXPECT_TRUE(schedule.servers_only) << seed;
    }
    for (const Fault& fault : schedule.faults) {
      kinds.insert(fault.kind);
      targets.insert(fault.targets.begin(), fault.targets.end());
    }
  }
  EXPECT_EQ(kinds.size(), 7u);
  EXPECT_EQ(networks.size(), 3u);
  EXPECT_EQ(traits.size(), 8u);
  EXPECT_GT(jobs.size(), 30u);
  EXPECT_EQ(targets.size(), static_cast<size_t>(kServers + kWorkers));
}

TEST(ScheduleTest, TheBaseAloneIsTheScheduleOfTheSeed) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(ToString(DrawSchedule(seed, {Trouble::kBase})), ToString(DrawSchedule(seed)));
  }
}

TEST(ScheduleTest, EveryTroubleHasAName) {
  for (const Trouble trouble : AllTroubles()) {
    EXPECT_EQ(TroubleOf(ToString(trouble)), trouble);
  }
  EXPECT_EQ(TroubleOf("none"), std::nullopt);
  EXPECT_EQ(AllTroubles().size(), 7u);
}

TEST(ScheduleTest, EveryTroubleIsDrawn) {
  std::set<Trouble> troubles;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    troubles.insert(DrawSchedule(seed, AllTroubles()).trouble);
  }
  EXPECT_EQ(troubles.size(), AllTroubles().size());
}

TEST(ScheduleTest, LongStopsAreOfEveryRoleAndLongerThanALease) {
  std::set<std::vector<ProcessId>> targets;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Schedule schedule = DrawSchedule(seed, {Trouble::kStopLong});
    ASSERT_EQ(schedule.faults.size(), 1u);
    const Fault& fault = schedule.faults[0];
    EXPECT_GT(fault.lasts, LeaseOf(schedule));
    // Workers are not dropped because the coordinator was stopped.
    EXPECT_EQ(EndsMembership(schedule, fault), !schedule.servers_only) << ToString(schedule);
    targets.insert(fault.targets);
  }
  // Each server, all servers, all processes, each worker, all workers.
  EXPECT_EQ(targets.size(), static_cast<size_t>(kServers + 2 + kWorkers + 1));
}

TEST(ScheduleTest, WhoeverIsCutOffFromAServerMayBeDropped) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Schedule schedule = DrawSchedule(seed, {Trouble::kCutLong});
    ASSERT_EQ(schedule.faults.size(), 1u);
    const Fault& fault = schedule.faults[0];
    EXPECT_EQ(schedule.network, Network::kProxy);
    EXPECT_GT(fault.lasts, LeaseOf(schedule));
    const size_t dropped = MayBeDropped(schedule, fault).size();
    EXPECT_EQ(dropped == 0, schedule.servers_only);
    if (fault.targets[0] == ServerId(0)) {
      EXPECT_EQ(dropped, static_cast<size_t>(kWorkers));
    } else if (fault.targets[0] == ServerId(1)) {
      EXPECT_EQ(dropped, fault.kind == FaultKind::kCut ? static_cast<size_t>(kWorkers) : 0u);
    } else {
      EXPECT_EQ(dropped, 1u);
    }
  }
}

}  // namespace
}  // namespace syncgrads::fault
