#include "client/psctl/timeline.h"

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/testing/json_fields.h"

namespace syncgrads::client {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using ::testing::ElementsAre;
using testing::Field;
using ::testing::IsEmpty;
using testing::Number;
using testing::Text;

// Parses the file that the timeline writes.
struct Written {
  explicit Written(const Timeline& timeline) {
    std::ostringstream out;
    timeline.Write(out);
    const auto parsed = google::protobuf::util::JsonStringToMessage(out.str(), &file);
    EXPECT_TRUE(parsed.ok()) << parsed.ToString() << "\n" << out.str();
  }
  std::vector<Struct> Events(const std::string& phase) const {
    std::vector<Struct> events;
    for (const Value& event : Field(file, "traceEvents").list_value().values()) {
      if (Text(event.struct_value(), "ph") == phase) events.push_back(event.struct_value());
    }
    return events;
  }
  const Struct& other() const { return Field(file, "otherData").struct_value(); }

  Struct file;
};

std::vector<double> TimesOf(const std::vector<Struct>& events) {
  std::vector<double> times;
  for (const Struct& event : events) times.push_back(Number(event, "ts"));
  return times;
}

// A part with one thread and events of one round.
class Part {
 public:
  explicit Part(const std::string& thread) {
    part_.add_threads()->set_id(7);
    part_.mutable_threads(0)->set_name(thread);
  }
  Part& Add(const std::string& name, int64_t begin_us, uint64_t duration_us, int member = -1) {
    v1::TraceEvent& event = *part_.add_events();
    event.set_name(static_cast<uint32_t>(part_.names_size()));
    part_.add_names(name);
    event.set_begin_ns(begin_us * 1000);
    event.set_duration_ns(duration_us * 1000);
    event.set_overlaps(name == "round");
    event.mutable_round()->set_round(5);
    if (member >= 0) event.mutable_round()->set_member(static_cast<uint32_t>(member));
    return *this;
  }
  operator const v1::TracePart&() const { return part_; }  // NOLINT: for short tests

 private:
  v1::TracePart part_;
};

TEST(TimelineTest, AllTimesAreOfOneClockAndRelativeToTheFirstEvent) {
  Timeline timeline("job");
  timeline.Add({"server 0", 0}, 100, Part("closer").Add("reduce", 5000, 10));
  timeline.Add({"worker 0 (ada)", 9, /*clock_offset=*/1'000'000, /*clock_error=*/2500}, 200,
               Part("trainer").Add("step", 3000, 20));
  const Written written(timeline);
  const std::vector<Struct> spans = written.Events("X");
  EXPECT_THAT(TimesOf(spans), ElementsAre(1000, 0));
  EXPECT_EQ(Number(spans[1], "dur"), 20);
  EXPECT_EQ(Number(written.other(), "clock_error_us"), 2.5);
  EXPECT_EQ(timeline.events(), 2u);
}

TEST(TimelineTest, ProcessesAndThreadsHaveNames) {
  Timeline timeline("my \"job\"\n");
  timeline.Add({"worker 1 (b)", 11, 0, 30}, 200, Part("trainer").Add("step", 1, 1));
  timeline.Add({"worker 0 (a)", 10, 0, 40}, 200, v1::TracePart());
  timeline.Add({"server 0", 0}, 100, Part("closer").Add("reduce", 1, 1));
  timeline.AddMissing("worker \"c\" died");
  const Written written(timeline);
  std::vector<std::string> names;
  for (const Struct& event : written.Events("M")) {
    const std::string kind = Text(event, "name");
    if (kind != "process_name" && kind != "thread_name") continue;
    names.push_back(Text(Field(event, "args").struct_value(), "name"));
  }
  EXPECT_THAT(names, ElementsAre("server 0", "closer", "worker 0 (a), worker 1 (b)", "trainer"));
  EXPECT_EQ(Text(written.other(), "job"), "my \"job\"\n");
  EXPECT_EQ(Field(written.other(), "missing").list_value().values(0).string_value(),
            "worker \"c\" died");
  EXPECT_EQ(timeline.clock_error(), 30u);
}

TEST(TimelineTest, ArrowsLeadFromThePushToTheResult) {
  Timeline timeline("job");
  timeline.Add({"worker 0 (a)", 10}, 200,
               Part("trainer").Add("push", 10, 1, 3).Add("result", 50, 1, 3));
  timeline.Add({"worker 1 (b)", 11}, 300, Part("trainer").Add("push", 12, 1, 4));
  timeline.Add({"server 0", 0}, 100,
               Part("grpc").Add("receive", 20, 1, 3).Add("round", 20, 15).Add("reduce", 30, 5));
  const Written written(timeline);
  ASSERT_THAT(TimesOf(written.Events("s")), ElementsAre(0, 2));
  EXPECT_THAT(TimesOf(written.Events("t")), ElementsAre(10, 20));
  ASSERT_THAT(TimesOf(written.Events("f")), ElementsAre(40, 20));
  EXPECT_EQ(Number(written.Events("s")[0], "id"), Number(written.Events("f")[0], "id"));
  EXPECT_NE(Number(written.Events("s")[0], "id"), Number(written.Events("s")[1], "id"));
  // The round overlaps with others, so it is no slice of the thread.
  EXPECT_THAT(TimesOf(written.Events("b")), ElementsAre(10));
  EXPECT_THAT(TimesOf(written.Events("e")), ElementsAre(25));
}

TEST(TimelineTest, APartThatIsMalformedIsLeftOut) {
  Timeline timeline("job");
  v1::TracePart part = Part("trainer").Add("push", 10, 1, 3);
  part.mutable_events(0)->set_name(1);
  timeline.Add({"worker 0 (a)", 10}, 200, part);
  part.mutable_events(0)->set_name(0);
  part.mutable_events(0)->set_thread(1);
  timeline.Add({"worker 0 (a)", 10}, 200, part);
  EXPECT_THAT(Written(timeline).Events("X"), IsEmpty());
  EXPECT_THAT(Written(Timeline("empty")).Events("X"), IsEmpty());
}

}  // namespace
}  // namespace syncgrads::client
