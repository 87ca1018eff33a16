#include "worker/report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/crc32c.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

using testing::ElementsAre;
using testing::Pair;

class SetClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1760000000);
};

template <typename T>
T NumberAt(const std::string& bytes, size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof(T));
  return number;
}

// Reads the events of a file and checks its framing and checksums.
std::vector<v1::TensorboardEvent> EventsIn(const std::string& path) {
  const auto file = ReadFile(path, 1 << 20);
  SYNCGRADS_EXPECT_OK(file);
  std::vector<v1::TensorboardEvent> events;
  size_t at = 0;
  while (at < file->size()) {
    const auto length = NumberAt<uint64_t>(*file, at);
    EXPECT_EQ(NumberAt<uint32_t>(*file, at + 8), MaskedCrc32c(file->substr(at, 8)));
    const std::string data = file->substr(at + 12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(NumberAt<uint32_t>(*file, at + 12 + length), MaskedCrc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(data));
    at += 16 + length;
  }
  EXPECT_EQ(at, file->size());
  return events;
}

std::vector<std::pair<std::string, float>> ScalarsOf(const v1::TensorboardEvent& event) {
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& value : event.summary().value()) {
    scalars.emplace_back(value.tag(), value.simple_value());
  }
  return scalars;
}

TEST(TensorboardTest, LossesAndSpeedAreWrittenAsTensorboardReadsThem) {
  const TemporaryDirectory directory;
  SetClock clock;
  auto created = TensorboardFile::Create(directory.path() + "/runs/w0", clock);
  SYNCGRADS_ASSERT_OK(created);
  const std::string path = (*created)->path();
  EXPECT_THAT(path, testing::HasSubstr("/runs/w0/events.out.tfevents.1760000000."));
  TensorboardProgress progress(*std::move(created), /*every=*/2, clock);
  progress.Started({.steps = 5});
  for (uint64_t step = 1; step <= 4; ++step) {
    clock.now += absl::Milliseconds(500);
    progress.Used({8, {.read = absl::Milliseconds(125), .wait = absl::Milliseconds(250)}, 0.25});
    progress.Stepped(step, step == 4 ? std::nullopt : std::optional<double>(step));
  }
  progress.Validated(4, {{"val_loss", 0.5}, {"top1", 0.25}});
  progress.Finished();
  progress.Evaluated("held_out", {{"loss", 0.5}, {"accuracy", 0.75}});
  const std::vector<v1::TensorboardEvent> events = EventsIn(path);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1760000000);
  EXPECT_EQ(events[1].step(), 2);
  EXPECT_EQ(events[1].wall_time(), 1760000001);
  EXPECT_THAT(ScalarsOf(events[1]),
              ElementsAre(Pair("training/loss", 1.5), Pair("training/own_loss", 1.5),
                          Pair("training/steps_per_s", 2), Pair("training/rows_per_s", 16),
                          Pair("training/learning_rate", 0.25), Pair("training/reads", 0.25),
                          Pair("training/waits", 0.5)));
  EXPECT_EQ(events[2].step(), 4);
  EXPECT_THAT(ScalarsOf(events[2]),
              testing::IsSupersetOf({Pair("training/loss", 3), Pair("training/steps_per_s", 2)}));
  EXPECT_EQ(events[3].step(), 4);
  EXPECT_THAT(ScalarsOf(events[3]),
              ElementsAre(Pair("validation/val_loss", 0.5), Pair("validation/top1", 0.25)));
  EXPECT_EQ(events[4].step(), 4);
  EXPECT_THAT(ScalarsOf(events[4]),
              ElementsAre(Pair("held_out/loss", 0.5), Pair("held_out/accuracy", 0.75)));
}

// The expected bytes were written by hand, from the description of the format.
TEST(TensorboardTest, AnEventHasTheFieldNumbersOfTensorflow) {
  v1::TensorboardEvent event;
  event.set_wall_time(1);
  event.set_step(3);
  auto& value = *event.mutable_summary()->add_value();
  value.set_tag("a");
  value.set_simple_value(2);
  EXPECT_EQ(event.SerializeAsString(),
            std::string("\x09\0\0\0\0\0\0\xf0\x3f"  // 1: double 1
                        "\x10\x03"                  // 2: varint 3
                        "\x2a\x0a"                  // 5: summary of 10 bytes
                        "\x0a\x08"                  //   1: value of 8
                        "\x0a\x01"
                        "a"                //     1: tag
                        "\x15\0\0\0\x40",  //     2: float 2
                        23));
}

TEST(TensorboardTest, AZeroIsWritten) {
  v1::TensorboardSummary::Value value;
  value.set_simple_value(0);
  EXPECT_EQ(value.SerializeAsString(), std::string("\x15\0\0\0\0", 5));
}

TEST(TensorboardTest, ADirectoryThatCannotBeMadeIsNamed) {
  const TemporaryDirectory directory;
  const SetClock clock;
  const std::string file = directory.Write("file", "");
  ExpectError(TensorboardFile::Create(file + "/w0", clock), absl::StatusCode::kPermissionDenied,
              {file + "/w0/events"});
}

}  // namespace
}  // namespace syncgrads
