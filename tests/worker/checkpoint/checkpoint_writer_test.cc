#include "worker/checkpoint/checkpoint_writer.h"

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/checkpoint/snapshot.h"

namespace syncgrads {
namespace {

Snapshot SnapshotAfter(uint64_t step) {
  Snapshot snapshot;
  snapshot.manifest.job = "job";
  snapshot.manifest.step = step;
  return snapshot;
}

TEST(CheckpointWriterTest, ACheckpointForWhichNoThreadStartsIsAnErrorAndTheNextIsWritten) {
  const TemporaryDirectory directory;
  CheckpointWriter writer({directory.path()});
  {
    const testing::NoThreads full;
    ExpectError(writer.Begin(SnapshotAfter(1)), absl::StatusCode::kResourceExhausted,
                {"a thread for checkpoints"});
  }
  EXPECT_FALSE(writer.busy());
  SYNCGRADS_ASSERT_OK(writer.Begin(SnapshotAfter(2)));
  SYNCGRADS_ASSERT_OK(writer.Finish(absl::Minutes(1)));
  const std::vector<CheckpointOutcome> outcomes = writer.TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].step, 2u);
  SYNCGRADS_EXPECT_OK(outcomes[0].path);
}

}  // namespace
}  // namespace syncgrads
