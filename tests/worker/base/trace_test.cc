#include "worker/base/trace.h"

#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;

std::string NameOf(const Struct& event) { return event.fields().at("name").string_value(); }
double Number(const Struct& event, const char* field) {
  return event.fields().at(field).number_value();
}

TEST(TraceTest, SpansLieInOneAnotherAsTheyWereMade) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/trace.json";
  {
    const auto trace = Trace::Create(path, "worker \"7\"");
    SYNCGRADS_ASSERT_OK(trace);
    const Trace::Span outer(trace->get(), Trace::Row::kSteps, "step", 3);
    { const Trace::Span first(trace->get(), Trace::Row::kCompute, "forward dense1"); }
    const Trace::Span second(trace->get(), Trace::Row::kResults, "wait for dense1/kernel");
    const Trace::Span nowhere(nullptr, Trace::Row::kResults, "wait for nothing");
    const absl::Time begin = MonotonicNow();
    (*trace)->Add(Trace::Row::kDevice, "backward dense1", begin, begin + absl::Milliseconds(5));
  }
  const auto text = ReadFile(path, 1 << 20);
  SYNCGRADS_ASSERT_OK(text);
  ListValue events;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(*text, &events).ok()) << *text;
  ASSERT_EQ(events.values_size(), 6 + 4) << *text;
  EXPECT_EQ(events.values(0)
                .struct_value()
                .fields()
                .at("args")
                .struct_value()
                .fields()
                .at("name")
                .string_value(),
            "worker \"7\"");
  const Struct& forward = events.values(6).struct_value();
  const Struct& backward = events.values(7).struct_value();
  const Struct& wait = events.values(8).struct_value();
  const Struct& step = events.values(9).struct_value();
  EXPECT_EQ(NameOf(backward), "backward dense1");
  EXPECT_EQ(Number(backward, "dur"), 5000);
  EXPECT_EQ(NameOf(forward), "forward dense1");
  EXPECT_EQ(NameOf(wait), "wait for dense1/kernel");
  EXPECT_EQ(NameOf(step), "step 3");
  EXPECT_LE(Number(step, "ts"), Number(forward, "ts"));
  EXPECT_LE(Number(forward, "ts") + Number(forward, "dur"), Number(wait, "ts") + 1);
  EXPECT_LE(Number(wait, "ts") + Number(wait, "dur"), Number(step, "ts") + Number(step, "dur") + 1);
  EXPECT_NE(Number(step, "tid"), Number(wait, "tid"));
}

TEST(TraceTest, AFileThatCannotBeWrittenIsNamed) {
  ExpectError(Trace::Create("/nowhere/trace.json", "worker-0"), absl::StatusCode::kPermissionDenied,
              {"/nowhere/trace.json"});
}

}  // namespace
}  // namespace syncgrads
