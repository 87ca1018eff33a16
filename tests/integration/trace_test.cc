// Tests of `psctl trace` on running jobs.

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"
#include "tests/testing/json_fields.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A span of a thread, or a point of an arrow. Times are in microseconds.
struct Span {
  std::string name;
  std::string process;
  double begin = 0;
  double end = 0;
};
using RoundKey = std::tuple<double, double, double>;  // group, chunk, round

// The file that psctl has written.
struct Timeline {
  explicit Timeline(const std::string& json) {
    const auto parsed = google::protobuf::util::JsonStringToMessage(json, &file);
    EXPECT_TRUE(parsed.ok()) << parsed.ToString();
    const auto& events = Field(file, "traceEvents").list_value().values();
    for (const Value& value : events) {
      const Struct& event = value.struct_value();
      if (Text(event, "ph") == "M" && Text(event, "name") == "process_name") {
        processes[Number(event, "pid")] = Text(Field(event, "args").struct_value(), "name");
      }
    }
    for (const Value& value : events) Read(value.struct_value());
    const Struct& other = Field(file, "otherData").struct_value();
    clock_error = Number(other, "clock_error_us");
    lost = Number(other, "lost_events");
  }

  void Read(const Struct& event) {
    const std::string phase = Text(event, "ph");
    const Span span{Text(event, "name"), processes[Number(event, "pid")], Number(event, "ts"),
                    Number(event, "ts") + Number(event, "dur")};
    const std::pair<double, double> thread{Number(event, "pid"), Number(event, "tid")};
    if (phase == "X") {
      spans.push_back(span);
      begins.insert({thread, span.begin});
      const Struct& args = Field(event, "args").struct_value();
      if (args.fields().contains("round")) {
        rounds[{Number(args, "group"), Number(args, "chunk"), Number(args, "round")}].push_back(
            span);
      }
    } else if (phase == "s" || phase == "t" || phase == "f") {
      arrows[Number(event, "id")].push_back({thread, span});
    }
  }

  // The spans, by name, of the rounds that have all of them. Rounds that were open when the
  // recording began or ended lack some.
  std::vector<std::map<std::string, std::vector<Span>>> CompleteRounds() const {
    std::vector<std::map<std::string, std::vector<Span>>> complete;
    for (const auto& [key, spans_of_round] : rounds) {
      std::map<std::string, std::vector<Span>> by_name;
      for (const Span& span : spans_of_round) by_name[span.name].push_back(span);
      if (by_name["push"].size() == 2 && by_name["receive"].size() == 2 &&
          by_name["reduce"].size() == 1 && by_name["result"].size() == 2) {
        complete.push_back(std::move(by_name));
      }
    }
    return complete;
  }

  using Thread = std::pair<double, double>;
  Struct file;
  std::map<double, std::string> processes;
  std::vector<Span> spans;
  std::set<std::pair<Thread, double>> begins;
  std::map<RoundKey, std::vector<Span>> rounds;
  std::map<double, std::vector<std::pair<Thread, Span>>> arrows;
  double clock_error = 0;
  double lost = 0;
};

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Two chunks, so that each server has one.
    const std::string job = WriteTemporaryFile(
        "traced.job",
        "name: \"traced\" seed: 7 batch_size: 8 workers: 2 steps: 100000000 chunk_bytes: 512\n"
        "data { generated { rows: 300 seed: 1 } } optimizer { sgd {} }\n"
        "model { layers { dense { outputs: 32 activation: TANH } } "
        "layers { dense { outputs: 1 } } }\n"
        "loss { sigmoid_cross_entropy {} }\n");
    for (int rank = 0; rank < 2; ++rank) {
      workers_.push_back(
          cluster_.StartWorker(job, rank, 2, {absl::StrCat("--name=worker-", rank)}));
    }
    // A worker prints this line when it starts to train.
    ASSERT_TRUE(workers_[0]->WaitForLine("traced: 300 rows", kLongEnough).ok());
  }

  std::unique_ptr<Process> StartTrace(const std::string& seconds, int server = 0) {
    auto started = Process::Start(
        {.program = "client/psctl/psctl",
         .args = {"trace", absl::StrCat("--seconds=", seconds), absl::StrCat("--output=", path_),
                  "--timeout=2m", absl::StrCat("--server=", cluster_.address(server))}});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }

  // Runs a variant of `psctl trace`.
  Finished Psctl(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"trace", absl::StrCat("--server=", cluster_.address(0)),
                                     absl::StrCat("--output=", path_), "--timeout=2m"};
    args.insert(args.end(), more.begin(), more.end());
    const auto run = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.value_or(Finished{});
  }

  // Records until the timeline has complete rounds and steps.
  Timeline RecordRounds(int server = 0) {
    for (const char* seconds : {"0.3", "3", "30"}) {
      const auto psctl = StartTrace(seconds, server);
      EXPECT_EQ(WaitFor(*psctl), ExitCode(0)) << psctl->output();
      Timeline timeline(ReadFileOrDie(path_));
      const auto steps = std::count_if(timeline.spans.begin(), timeline.spans.end(),
                                       [](const Span& span) { return span.name == "step"; });
      if (!timeline.CompleteRounds().empty() && steps >= 4) return timeline;
    }
    ADD_FAILURE() << "no round is complete";
    return Timeline("{}");
  }

  Cluster cluster_{2, {"--lease=10m", "--stream_grace=100ms"}};
  std::vector<std::unique_ptr<Process>> workers_;
  const std::string path_ = TemporaryPath("trace.json");
};

TEST_F(TraceTest, ShowsTheWorkOfAllServersAndWorkers) {
  const Timeline timeline = RecordRounds(/*server=*/1);
  std::vector<std::string> processes;
  std::set<std::string> of_workers, of_servers;
  for (const auto& [pid, name] : timeline.processes) processes.push_back(name);
  EXPECT_THAT(processes,
              ElementsAre("server 0", "server 1", "worker 0 (worker-0)", "worker 1 (worker-1)"));
  for (const Span& span : timeline.spans) {
    (absl::StartsWith(span.process, "worker") ? of_workers : of_servers).insert(span.name);
  }
  for (const char* name : {"step", "forward dense1", "backward dense1", "push dense1/kernel",
                           "update", "push", "result"}) {
    EXPECT_THAT(of_workers, Contains(name));
  }
  for (const char* name : {"receive", "reduce", "queue results"}) {
    EXPECT_THAT(of_servers, Contains(name));
  }
}

TEST_F(TraceTest, TheEventsOfARoundAreInCausalOrder) {
  const Timeline timeline = RecordRounds();
  for (auto& by_name : timeline.CompleteRounds()) {
    // Both clocks of a comparison may be wrong.
    const double error = 2 * timeline.clock_error;
    const Span& reduce = by_name["reduce"][0];
    for (const Span& push : by_name["push"]) EXPECT_LE(push.begin, reduce.begin + error);
    for (const Span& receive : by_name["receive"]) EXPECT_LE(receive.begin, reduce.begin);
    for (const Span& result : by_name["result"]) EXPECT_LE(reduce.begin, result.end + error);
    for (const Span& receive : by_name["receive"]) {
      EXPECT_TRUE(std::any_of(by_name["push"].begin(), by_name["push"].end(),
                              [&](const Span& push) { return push.begin <= receive.end + error; }));
    }
  }
}

TEST_F(TraceTest, ArrowsConnectSpans) {
  const Timeline timeline = RecordRounds();
  int whole = 0;
  for (const auto& [id, points] : timeline.arrows) {
    ASSERT_GE(points.size(), 2u);
    for (const auto& [thread, point] : points) {
      EXPECT_TRUE(timeline.begins.contains({thread, point.begin})) << id;
    }
    if (points.size() < 4) continue;
    ++whole;
    EXPECT_THAT(points[0].second.process, StartsWith("worker"));
    EXPECT_THAT(points[1].second.process, StartsWith("server"));
    EXPECT_EQ(points[2].second.process, points[1].second.process);
    EXPECT_EQ(points[3].second.process, points[0].second.process);
  }
  EXPECT_GT(whole, 0);
}

TEST_F(TraceTest, AWorkerThatIsKilledIsNamed) {
  // It is stopped first, so that it cannot report before it is killed.
  workers_[1]->Kill(SIGSTOP);
  const auto psctl = StartTrace("0.3");
  ASSERT_TRUE(psctl->WaitForLine("recording job \"traced\"", kLongEnough).ok());
  workers_[1]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*psctl), ExitCode(128)) << psctl->output();
  EXPECT_THAT(psctl->output(), HasSubstr("missing: worker \"worker-1\" (rank 1) left the job or"));
  const std::string json = ReadFileOrDie(path_);
  EXPECT_THAT(json, HasSubstr("worker 0 (worker-0)"));
  EXPECT_THAT(json, HasSubstr("worker \\\"worker-1\\\" (rank 1) left the job or"));
  EXPECT_THAT(json, Not(HasSubstr("worker 1 (worker-1)")));
}

TEST_F(TraceTest, ASecondTraceIsRefusedUntilTheFirstIsOver) {
  const auto first = StartTrace("60");
  ASSERT_TRUE(first->WaitForLine("recording job \"traced\"", kLongEnough).ok());
  const auto second = StartTrace("0.1");
  EXPECT_EQ(WaitFor(*second), ExitCode(1)) << second->output();
  EXPECT_THAT(second->output(),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("is already recording a trace")));
  // The recording ends with the call.
  first->Kill(SIGKILL);
  WaitFor(*first);
  std::string output;
  EXPECT_TRUE(WaitUntil([&] {
    const auto third = StartTrace("0.1");
    const Exit exit = WaitFor(*third);
    output = third->output();
    return exit == ExitCode(0);
  })) << output;
}

TEST_F(TraceTest, ARecordingInTheBackgroundEndsWhenItIsStopped) {
  const Finished started = Psctl({"start"});
  EXPECT_EQ(started.exit, ExitCode(0)) << started.output;
  EXPECT_THAT(started.output, HasSubstr("recording job \"traced\" until `psctl trace stop`"));
  const Finished again = Psctl({"start"});
  EXPECT_EQ(again.exit, ExitCode(1)) << again.output;
  EXPECT_THAT(again.output, HasSubstr("`trace stop` ends it"));
  EXPECT_EQ(Psctl({}).exit, ExitCode(1)) << "the servers are recording";
  // A wrong token ends nothing.
  const Finished guessed = Psctl({"stop", "--token=guessed", "--job=traced"});
  EXPECT_EQ(guessed.exit, ExitCode(1)) << guessed.output;
  EXPECT_THAT(guessed.output, HasSubstr("wrong token"));
  // The recording goes on for a minute, and `stop` for 30 s.
  const Finished stopped = Psctl({"stop"});
  EXPECT_EQ(stopped.exit, ExitCode(0)) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr(absl::StrCat(path_, ": ")));
  EXPECT_THAT(stopped.output, HasSubstr(" events, "));
  const Timeline timeline(ReadFileOrDie(path_));
  std::vector<std::string> processes;
  for (const auto& [pid, name] : timeline.processes) processes.push_back(name);
  EXPECT_THAT(processes,
              ElementsAre("server 0", "server 1", "worker 0 (worker-0)", "worker 1 (worker-1)"));
  const Finished nothing = Psctl({"stop"});
  EXPECT_EQ(nothing.exit, ExitCode(1)) << nothing.output;
  EXPECT_THAT(nothing.output, HasSubstr("no recording is in progress"));
}

TEST_F(TraceTest, AnyRecordingOfTheJobIsStopped) {
  const auto psctl = StartTrace("60");
  ASSERT_TRUE(psctl->WaitForLine("recording job \"traced\"", kLongEnough).ok());
  const Finished stopped = Psctl({"stop"});
  EXPECT_EQ(stopped.exit, ExitCode(0)) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("the recording of job \"traced\" has ended; it was not"));
  EXPECT_EQ(WaitFor(*psctl), ExitCode(0)) << psctl->output();
  EXPECT_THAT(psctl->output(), HasSubstr(" events, "));
}

TEST_F(TraceTest, SummariesAreAlsoInJson) {
  const Finished traced = Psctl({"--seconds=0.1", "-o", "json"});
  EXPECT_EQ(traced.exit, ExitCode(0)) << traced.output;
  EXPECT_THAT(traced.output, HasSubstr(absl::StrCat("{\"path\":\"", path_, "\",\"events\":")));
  EXPECT_THAT(traced.output, HasSubstr("\"missing\":[]}\n"));
  EXPECT_EQ(Psctl({"start", "-o", "json"}).output, "{\"job\":\"traced\"}\n");
  const Finished stopped = Psctl({"stop", "-o", "json"});
  EXPECT_EQ(stopped.exit, ExitCode(0)) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr(absl::StrCat("{\"path\":\"", path_, "\",\"events\":")));
}

TEST_F(TraceTest, ARequestThatCannotBeServedIsRefused) {
  const auto expect = [&](const std::vector<std::string>& more, int code, const std::string& text) {
    std::vector<std::string> args = {"trace", absl::StrCat("--server=", cluster_.address(0)),
                                     absl::StrCat("--output=", path_)};
    args.insert(args.end(), more.begin(), more.end());
    const auto run = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->exit, ExitCode(code)) << run->output;
    EXPECT_THAT(run->output, HasSubstr(text));
  };
  expect({"start", "--seconds=0"}, 2, "more than 0 and at most 60");
  expect({"start", "--output=/nowhere/trace.json"}, 1, "cannot write the trace");
  expect({"stop"}, 1, "no recording is in progress");
  expect({"--seconds=0"}, 2, "more than 0 and at most 60");
  expect({"--seconds=61"}, 2, "more than 0 and at most 60");
  expect({"--job=other"}, 1, "no job \"other\"");
  expect({"--token=guessed"}, 1, "wrong token");
  expect({"--output=/nowhere/trace.json"}, 1, "cannot write the trace /nowhere/trace.json");
}

}  // namespace
}  // namespace syncgrads::testing
