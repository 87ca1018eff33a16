// The agreement on checkpoints, and what is taken, with a fake of the service and no mode.

#include "worker/trainer/checkpoint_keeper.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/forwarding_team.h"
#include "tests/worker/testing/temporary_directory.h"
#include "tests/worker/trainer/iris_run.h"
#include "worker/base/string_list.h"
#include "worker/train/resume.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Counts the checkpoints that were written.
class Written : public NoProgress {
 public:
  void Checkpointed(bool written) override { count += written ? 1 : 0; }
  int count = 0;
};

// A worker whose steps change nothing.
struct Worker {
  Worker(const Job& job, Team& team)
      : writer(CheckpointOptionsOf(job)),
        iris(job, team, Options()),
        states(*iris.run, iris.replica(), iris.engine()),
        validator(*iris.run, iris.replica(), states),
        state(*iris.run, iris.replica(), validator) {
    auto registered = TrainingGroup::Register(*iris.run, iris.replica());
    SYNCGRADS_EXPECT_OK(registered);
    group = *std::move(registered);
    keeper.emplace(*iris.run, iris.replica(), states, validator, state, group.get());
  }

  TrainerOptions Options() {
    TrainerOptions options;
    options.progress = &written;
    options.checkpoints = &writer;
    options.step_timeout = kTimeout;
    options.note = [this](const std::string& line) { absl::StrAppend(&notes, line, "\n"); };
    return options;
  }

  // Makes a step. Returns whether a checkpoint was taken after it.
  bool Step() {
    group->Begin();
    SYNCGRADS_EXPECT_OK(keeper->Offer());
    SYNCGRADS_EXPECT_OK(group->PushAll());
    const auto contributors = group->WaitStep(kTimeout);
    SYNCGRADS_EXPECT_OK(contributors);
    ++iris.run->steps;
    state.SaveCounters();
    if (!keeper->IsAgreed(*contributors)) return false;
    SYNCGRADS_EXPECT_OK(keeper->Take(*group->group().LastStep(kTimeout)));
    keeper->Finish();
    return true;
  }

  // Validates the model, and takes a checkpoint if it is the best so far.
  void TakeBest() {
    SYNCGRADS_ASSERT_OK(validator.Validate(/*members=*/1));
    ASSERT_TRUE(validator.is_best());
    SYNCGRADS_EXPECT_OK(keeper->Take(*group->group().LastStep(kTimeout), /*is_best=*/true));
  }

  Written written;
  std::string notes;
  CheckpointWriter writer;
  IrisRun iris;
  LayerStates states;
  Validator validator;
  TrainingState state;
  std::unique_ptr<TrainingGroup> group;
  std::optional<CheckpointKeeper> keeper;
};

class CheckpointKeeperTest : public testing::Test {
 protected:
  Job MakeJob(const std::string& checkpoint) {
    return IrisJob("", absl::StrCat("checkpoint { directory: \"", directory_.path(), "/run\" ",
                                    checkpoint, " }"));
  }
  // Validates after each step, and keeps the best checkpoint.
  Job MakeJobWithBest() {
    Job job = MakeJob("every_steps: 100 best: LOSS");
    job.file.mutable_validation()->set_every_steps(1);
    return job;
  }

  TemporaryDirectory directory_;
};

TEST_F(CheckpointKeeperTest, AllWorkersTakeACheckpointWhenItIsDueAndTheFirstOneWritesIt) {
  const Job job = MakeJob("every_steps: 3");
  FakeJob workers(2);
  std::vector<std::vector<bool>> taken(2);
  std::vector<int> written(2);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    for (int step = 0; step < 7; ++step) taken[team.rank()].push_back(worker.Step());
    SYNCGRADS_EXPECT_OK(worker.keeper->TakeLast());
    worker.keeper->Finish();
    written[team.rank()] = worker.written.count;
  });
  const std::vector<bool> expected = {false, false, true, false, false, true, false};
  EXPECT_EQ(taken[0], expected);
  EXPECT_EQ(taken[1], expected);
  EXPECT_EQ(written, std::vector<int>({3, 0})) << "the last one is after step 7";
}

TEST_F(CheckpointKeeperTest, AStoppedWorkerMakesOneMoreStepAndAllTakeACheckpointAfterIt) {
  const Job job = MakeJob("every_steps: 100");
  FakeJob workers(2);
  std::vector<std::vector<bool>> taken(2);
  std::vector<absl::Status> stopped(2);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    taken[team.rank()].push_back(worker.Step());
    if (team.rank() == 1) {
      SYNCGRADS_EXPECT_OK(worker.keeper->Stop());
    }
    taken[team.rank()].push_back(worker.Step());
    stopped[team.rank()] = worker.keeper->Stop();
  });
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(taken[rank], std::vector<bool>({false, true}));
    EXPECT_EQ(stopped[rank], absl::CancelledError("stopped by a signal after step 2"));
  }
}

TEST_F(CheckpointKeeperTest, WithoutCheckpointsAStoppedWorkerStopsAtOnce) {
  const Job job = IrisJob("");
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    EXPECT_FALSE(worker.Step());
    EXPECT_EQ(worker.keeper->Stop(), absl::CancelledError("stopped by a signal after step 1"));
    SYNCGRADS_EXPECT_OK(worker.keeper->TakeLast());
    EXPECT_EQ(worker.written.count, 0);
  });
}

TEST_F(CheckpointKeeperTest, TheBestOneWaitsForTheOneThatIsBeingWritten) {
  const Job job = MakeJobWithBest();
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    worker.Step();
    absl::Notification taken;
    const auto complete = [&](Snapshot&) {
      EXPECT_FALSE(taken.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
      return absl::OkStatus();
    };
    SYNCGRADS_ASSERT_OK(worker.writer.Begin(worker.state.TakeSnapshot({}), complete));
    worker.Step();
    worker.TakeBest();
    taken.Notify();
    worker.keeper->Finish();
    EXPECT_EQ(worker.written.count, 2) << worker.notes;
  });
  const auto best = ReadCheckpoint(directory_.path() + "/run/best");
  SYNCGRADS_ASSERT_OK(best);
  EXPECT_EQ(best->manifest.step, 2u);
  EXPECT_TRUE(best->manifest.score.has_value());
}

TEST_F(CheckpointKeeperTest, TheBestOneThatCannotWaitIsReportedAndNotTakenLater) {
  const Job job = MakeJobWithBest();
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    worker.Step();
    absl::Notification may_end;
    const auto complete = [&](Snapshot&) {
      EXPECT_TRUE(may_end.WaitForNotificationWithTimeout(kTimeout));
      return absl::OkStatus();
    };
    SYNCGRADS_ASSERT_OK(worker.writer.Begin(worker.state.TakeSnapshot({}), complete));
    worker.Step();
    worker.iris.options.step_timeout = absl::Milliseconds(1);
    worker.TakeBest();
    worker.iris.options.step_timeout = kTimeout;
    EXPECT_EQ(worker.notes,
              "checkpoint not written after step 2: the previous one is still being written; "
              "training continues\n");
    may_end.Notify();
    SYNCGRADS_EXPECT_OK(worker.writer.Finish(kTimeout));
    EXPECT_FALSE(worker.Step());
    worker.keeper->Finish();
    EXPECT_EQ(worker.written.count, 1);
  });
}

TEST_F(CheckpointKeeperTest, WithoutMemoryToWriteItTrainingContinues) {
  const Job job = MakeJob("every_steps: 100");
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    worker.Step();
    SYNCGRADS_ASSERT_OK(worker.writer.Begin(
        worker.state.TakeSnapshot({}), [](Snapshot&) -> absl::Status { throw std::bad_alloc(); }));
    worker.keeper->Finish();
    EXPECT_EQ(worker.notes,
              "checkpoint not written after step 1: not enough memory to write it; training "
              "continues\n");
  });
}

TEST_F(CheckpointKeeperTest, ASnapshotIsRestoredOnAllWorkers) {
  const Job job = MakeJob("every_steps: 2");
  FakeJob first(1);
  std::optional<Snapshot> snapshot;
  first.Run([&](Team& team) {
    Worker worker(job, team);
    worker.Step();
    static_cast<double*>(worker.iris.replica().parameters()[0].values)[1] = 42;
    snapshot = worker.state.TakeSnapshot({});
  });
  FakeJob second(2);
  second.Run([&](Team& team) {
    Worker worker(job, team);
    Resumption from{snapshot->manifest, /*root=*/1, {}};
    if (team.rank() == 1) from.snapshot = snapshot;
    SYNCGRADS_ASSERT_OK(worker.state.Restore(from, *worker.group));
    EXPECT_EQ(static_cast<double*>(worker.iris.replica().parameters()[0].values)[1], 42);
    EXPECT_EQ(worker.iris.run->steps, 1u);
    EXPECT_FALSE(from.snapshot.has_value());
  });
}

TEST_F(CheckpointKeeperTest, ASnapshotThatDoesNotFitIsAnErrorOnAllWorkers) {
  const Job job = MakeJob("every_steps: 2");
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    Worker worker(job, team);
    Resumption from{Manifest(), /*root=*/0, {}};
    if (team.rank() == 0) from.snapshot.emplace();
    const absl::Status restored = worker.state.Restore(from, *worker.group);
    EXPECT_EQ(restored.code(), absl::StatusCode::kNotFound) << restored;
  });
}

// Replaces what the last rank sends in a collective.
class TamperingTeam : public ForwardingTeam {
 public:
  TamperingTeam(Team& team, std::string collective, std::string bytes)
      : ForwardingTeam(team), collective_(std::move(collective)), bytes_(std::move(bytes)) {}

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                  absl::string_view bytes) override {
    auto all = ForwardingTeam::Gather(name, bytes);
    if (all.ok() && name == collective_) all->back() = bytes_;
    return all;
  }

 private:
  const std::string collective_;
  const std::string bytes_;
};

TEST_F(CheckpointKeeperTest, AMalformedNumberOfStepsIsAnError) {
  const Job job = MakeJob("every_steps: 2");
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    TamperingTeam tampering(team, "resume/kept", "seven b");
    ExpectError(FindResumption(job, true, std::nullopt, tampering, [](const std::string&) {}),
                absl::StatusCode::kDataLoss, {"from rank 0: 7 bytes"});
  });
}

TEST_F(CheckpointKeeperTest, AMalformedStateIsAnError) {
  const Job job = IrisJob("layers { batch_norm {} }", absl::StrCat("checkpoint { directory: \"",
                                                                   directory_.path(), "/run\" }"));
  const std::string ok = EncodeStatus(absl::OkStatus());
  for (const std::vector<std::string>& sent : std::vector<std::vector<std::string>>{
           {}, {ok}, {ok, "number"}, {ok, EncodeNumber(uint64_t{1} << 60)}}) {
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      TamperingTeam tampering(team, "checkpoint/loaded", EncodeStrings(sent));
      Worker worker(job, tampering);
      Resumption from{Manifest(), /*root=*/0, worker.state.TakeSnapshot({})};
      ExpectError(worker.state.Restore(from, *worker.group), absl::StatusCode::kDataLoss,
                  {"another worker"});
    });
  }
}

TEST(LayerStatesTest, StatesOfAnotherLengthAreAnError) {
  const Job job = IrisJob("layers { batch_norm {} }");
  FakeJob workers(2);
  workers.Run([&](Team& team) {
    TamperingTeam tampering(team, "layer_states", "seven b");
    IrisRun iris(job, tampering);
    LayerStates states(*iris.run, iris.replica(), iris.engine());
    ExpectError(states.Gather(), absl::StatusCode::kDataLoss, {"have 7 bytes, must have "});
  });
}

// A layer state of which the workers have different values.
TEST(LayerStatesTest, TheMeanIsOverTheWorkersAndOwnStatesCanBeUsedAgain) {
  const Job job = IrisJob("layers { batch_norm {} }");
  FakeJob workers(3);
  workers.Run([&](Team& team) {
    IrisRun iris(job, team);
    LayerStates states(*iris.run, iris.replica(), iris.engine());
    auto* const mean = static_cast<double*>(iris.replica().states()[0].data);
    mean[2] = 3.0 * team.rank();
    const std::string own = states.Own();
    const auto all = states.Gather();
    SYNCGRADS_ASSERT_OK(all);
    ASSERT_EQ(all->size(), 3u);
    states.UseMean(*all);
    EXPECT_EQ(mean[2], 3.0);
    SYNCGRADS_ASSERT_OK(states.Use(own));
    EXPECT_EQ(mean[2], 3.0 * team.rank());
    SYNCGRADS_ASSERT_OK(states.UseMeanForGood());
    EXPECT_EQ(mean[2], 3.0);
  });
}

}  // namespace
}  // namespace syncgrads
