#include "worker/report/progress_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/base/host_name.h"

namespace syncgrads {
namespace {

class SetClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1760000000);
};

// Returns the lines without the fields that all lines have in common; the time is kept.
std::vector<std::string> LinesOf(const std::string& path) {
  auto text = ReadFile(path, 1 << 20);
  SYNCGRADS_EXPECT_OK(text);
  const std::string common =
      absl::StrCat(",\"job\":\"iris\",\"worker\":\"w\\\"0\",\"host\":", JsonString(HostName()));
  return absl::StrSplit(absl::StrReplaceAll(*text, {{common, ""}}), '\n', absl::SkipEmpty());
}

TEST(ProgressLogTest, ALineOfJsonForEachIntervalAndWhatTheModelIsWorth) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("log.jsonl", "{}\n");
  SetClock clock;
  auto log = ProgressLog::Open(path, "w\"0", /*every=*/2, clock);
  SYNCGRADS_ASSERT_OK(log);
  (*log)->Started({"iris", 3, 3, 120, 30, 235, 8, 5, /*averages_losses=*/true});
  for (const uint64_t step : {1, 2, 5}) {  // steps 3 and 4 are missing
    clock.now += absl::Milliseconds(250);
    (*log)->Used({8, {.read = absl::Milliseconds(50), .wait = absl::Milliseconds(125)}, 0.01});
    if (step == 2) (*log)->Averaged({2, 1.25, 96});
    (*log)->Stepped(step, static_cast<double>(step));
  }
  (*log)->Stepped(6, std::nullopt);
  (*log)->Validated(6, {{"val_loss", 0.25}, {"top5", 1}});
  (*log)->StoppedEarly(6, "enough");
  (*log)->Finished();
  (*log)->Evaluated("held_out",
                    {{"loss", std::numeric_limits<double>::infinity()}, {"accuracy", 0.5}});
  EXPECT_THAT(
      LinesOf(path),
      testing::ElementsAre(
          "{}",
          "{\"event\":\"started\",\"time\":1760000000.000,\"steps\":5,\"workers\":3,"
          "\"batch_size\":8,\"parameters\":235}",
          "{\"event\":\"step\",\"time\":1760000000.500,\"step\":2,\"steps\":5,\"loss\":1.25,"
          "\"own_loss\":1.5,\"steps_per_s\":4,\"rows_per_s\":96,\"learning_rate\":0.01,"
          "\"reads\":0.2,\"waits\":0.5}",
          "{\"event\":\"step\",\"time\":1760000000.750,\"step\":5,\"steps\":5,"
          "\"own_loss\":5,\"steps_per_s\":6.66666667,\"rows_per_s\":96,\"learning_rate\":0.01,"
          "\"reads\":0.2,\"waits\":0.5}",
          "{\"event\":\"step\",\"time\":1760000000.750,\"step\":6,\"steps\":5,"
          "\"steps_per_s\":8,\"rows_per_s\":96,\"learning_rate\":0.01,\"reads\":0,"
          "\"waits\":0}",
          "{\"event\":\"validated\",\"time\":1760000000.750,\"step\":6,\"val_loss\":0.25,"
          "\"top5\":1}",
          "{\"event\":\"stopped_early\",\"time\":1760000000.750,\"step\":6,"
          "\"reason\":\"enough\"}",
          "{\"event\":\"finished\",\"time\":1760000000.750,\"step\":6}",
          "{\"event\":\"evaluated\",\"time\":1760000000.750,\"step\":6,\"rows\":\"held_out\","
          "\"loss\":null,\"accuracy\":0.5}"));
}

TEST(ProgressLogTest, AFileThatCannotBeWrittenIsNamed) {
  const SetClock clock;
  ExpectError(ProgressLog::Open("/nowhere/log", "w", 1, clock), absl::StatusCode::kPermissionDenied,
              {"/nowhere/log"});
}

}  // namespace
}  // namespace syncgrads
