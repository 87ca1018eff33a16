// Processes are killed while they write checkpoints. What they leave behind must be readable.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/random.h"
#include "worker/checkpoint/checkpoint_directory.h"

namespace syncgrads {
namespace {

constexpr int kKills = 100;
// The size of a file. The writer spends nearly all of its time writing, and some of it removing.
constexpr size_t kBytes = 1 << 20;
constexpr uint64_t kSeed = 20;

// Returns the expected contents of file number `file` in the checkpoint after `step`.
std::string Contents(uint64_t step, uint64_t file) {
  RandomStream random(kSeed, {step, file});
  std::string contents(kBytes + random.NextBelow(4096), '\0');
  uint64_t word = random.NextBelow(uint64_t{1} << 60);
  for (char& byte : contents) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(word >> 56);
  }
  return contents;
}

// Writes checkpoints until the process is killed. Acknowledges each by writing its step to `said`.
[[noreturn]] void WriteForEver(const std::string& path, uint64_t first, int said) {
  CheckpointDirectory checkpoints({path, /*keep=*/2, /*keep_best=*/true});
  for (uint64_t step = first;; ++step) {
    const std::string a = Contents(step, 0), b = Contents(step, 1);
    Manifest manifest;
    manifest.step = step;
    manifest.score = step % 3 == 0 ? 1.0 : 0.0;
    if (!checkpoints.Write(manifest, {{"a", {a}}, {"b", {b}}}).ok()) _exit(1);
    if (write(said, &step, sizeof step) != sizeof step) _exit(2);
  }
}

// Counts the checkpoints in this directory that have not been completed.
int Unfinished(const std::string& path) {
  int unfinished = 0;
  std::error_code error;  // entries that are renamed or deleted meanwhile are not counted
  for (std::filesystem::directory_iterator entry(path, error), end; entry != end && !error;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored) &&
        !std::filesystem::exists(entry->path() / "manifest.json", ignored)) {
      ++unfinished;
    }
  }
  return unfinished;
}

TEST(CheckpointKillTest, AHundredKillsNeverLeaveACheckpointThatLoadsWrongly) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run";
  const CheckpointDirectory checkpoints({path});
  RandomStream random(kSeed, {});
  uint64_t newest = 0;
  int unfinished = 0, unfinished_before = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    int said[2];
    ASSERT_EQ(pipe(said), 0);
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) WriteForEver(path, newest + 1, said[1]);
    close(said[1]);
    // Kills the writer at a random moment of its second or third checkpoint.
    uint64_t acknowledged = 0;
    for (uint64_t i = 0; i < 1 + random.NextBelow(2); ++i) {
      ASSERT_EQ(read(said[0], &acknowledged, sizeof acknowledged), ssize_t{sizeof acknowledged});
    }
    // Every second kill waits until an unfinished checkpoint is there. So it hits a checkpoint on a
    // machine of any speed.
    if (kill_number % 2 == 0) {
      usleep(static_cast<useconds_t>(random.NextBelow(8000)));
    } else {
      for (int poll = 0; poll < 100000 && Unfinished(path) == unfinished_before; ++poll) usleep(50);
    }
    ASSERT_EQ(kill(writer, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << status;
    while (read(said[0], &acknowledged, sizeof acknowledged) > 0) continue;
    close(said[0]);

    unfinished_before = Unfinished(path);
    unfinished += unfinished_before;
    // The newest acknowledged checkpoint is there, and every checkpoint that is listed can be read.
    const auto steps = checkpoints.Steps();
    SYNCGRADS_ASSERT_OK(steps);
    ASSERT_FALSE(steps->empty());
    EXPECT_GE(steps->back(), acknowledged);
    EXPECT_GE(steps->size(), 1u);
    for (const uint64_t step : *steps) {
      const auto checkpoint = ReadCheckpoint(checkpoints.PathOf(step));
      SYNCGRADS_ASSERT_OK(checkpoint);
      ASSERT_EQ(checkpoint->manifest.step, step);
      ASSERT_TRUE(checkpoint->files.at("a") == Contents(step, 0)) << "step " << step;
      ASSERT_TRUE(checkpoint->files.at("b") == Contents(step, 1)) << "step " << step;
    }
    newest = steps->back();
  }
  std::cout << kKills << " kills, " << unfinished << " of them within a checkpoint; " << newest
            << " checkpoints in all\n";
  EXPECT_GT(unfinished, kKills / 20);
}

}  // namespace
}  // namespace syncgrads
