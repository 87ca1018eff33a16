#include "worker/report/event_log.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

std::string Path(const std::string& name) { return testing::TempDir() + name; }

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(EventLogTest, WritesALineForEachEvent) {
  const std::string path = Path("lines");
  WorkerData data;
  data.shards.resize(2);
  data.shards[1].number = 4;
  {
    const auto log = EventLog::Open(path, "w\"1");
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Begins(7, true);
    (*log)->Stepped({.step = 7, .epoch = 3, .members = {"w0", "w\"1"}, .contributors = {1}},
                    {{1, 12}, {0, 3}}, data);
    (*log)->Stepped({.step = 8,
                     .epoch = 3,
                     .members = {"w0", "w\"1"},
                     .contributors = {0, 1},
                     .whole = false,
                     .parts = {{0, 1}, {}, {0}}},
                    {}, data);
    (*log)->Ends(7);
  }
  EXPECT_EQ(Contents(path),
            "{\"event\":\"begins\",\"worker\":\"w\\\"1\",\"step\":7,\"newcomer\":true}\n"
            "{\"event\":\"step\",\"worker\":\"w\\\"1\",\"step\":7,\"epoch\":3,"
            "\"members\":[\"w0\",\"w\\\"1\"],\"contributors\":[\"w\\\"1\"],\"whole\":true,"
            "\"rows\":[[4,12],[0,3]]}\n"
            "{\"event\":\"step\",\"worker\":\"w\\\"1\",\"step\":8,\"epoch\":3,"
            "\"members\":[\"w0\",\"w\\\"1\"],\"contributors\":[\"w0\",\"w\\\"1\"],"
            "\"whole\":false,\"parts\":[[\"w0\",\"w\\\"1\"],[],[\"w0\"]],\"rows\":[]}\n"
            "{\"event\":\"ends\",\"worker\":\"w\\\"1\",\"step\":7}\n");
}

TEST(EventLogTest, AWorkerThatIsStartedAgainGoesOnInTheSameFile) {
  const std::string path = Path("again");
  for (int i = 0; i < 2; ++i) {
    const auto log = EventLog::Open(path, "w0");
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Ends(i);
  }
  EXPECT_EQ(Contents(path),
            "{\"event\":\"ends\",\"worker\":\"w0\",\"step\":0}\n"
            "{\"event\":\"ends\",\"worker\":\"w0\",\"step\":1}\n");
}

TEST(EventLogTest, SaysWhichFileCannotBeWritten) {
  const auto log = EventLog::Open("/nonexistent/events", "w0");
  EXPECT_EQ(log.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(log.status().message().find("/nonexistent/events"), std::string::npos);
}

}  // namespace
}  // namespace syncgrads
