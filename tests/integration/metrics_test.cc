// Tests of --metrics of real servers and workers.

#include <google/protobuf/util/json_util.h>
#include <httplib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "tests/integration/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns "http://HOST:PORT", where a program serves its pages.
std::string PagesOf(Process& program) {
  const auto line = program.WaitForLine("serves metrics on http://", kLongEnough);
  EXPECT_TRUE(line.ok()) << line.status();
  if (!line.ok()) return "";
  const size_t begin = line->find("http://");
  return line->substr(begin, line->find("/metrics") - begin);
}

// Returns "STATUS BODY" of a page.
std::string Get(const std::string& pages, const std::string& path) {
  httplib::Client client(pages);
  client.set_read_timeout(absl::ToChronoSeconds(kLongEnough));
  const httplib::Result result = client.Get(path);
  if (!result) return httplib::to_string(result.error());
  return absl::StrCat(result->status, " ", result->body);
}

// Runs a program that has to end by itself.
Finished EndOf(const std::string& program, const std::vector<std::string>& args) {
  const auto run = RunProgram({.program = program, .args = args}, kLongEnough);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(Finished{});
}

TEST(MetricsTest, ServersAndWorkersServeTheirPages) {
  Cluster cluster(2, {"--metrics=127.0.0.1:0"});
  const auto worker = cluster.StartWorker(WriteLongJob("watched", 300000), 0, 1,
                                          {"--log_every=100", "--metrics=127.0.0.1:0"});
  const std::string first = PagesOf(cluster.server(0)), pages = PagesOf(*worker);
  ASSERT_TRUE(worker->WaitForLine("/300000", kLongEnough).ok()) << worker->output();
  EXPECT_EQ(Get(first, "/livez"), "200 ok\n");
  EXPECT_EQ(Get(first, "/readyz"), "200 ok\n");
  const std::string of_server = Get(first, "/metrics");
  EXPECT_THAT(of_server, HasSubstr("syncgrads_members{training_job=\"watched\"} 1\n"));
  EXPECT_THAT(of_server, HasSubstr("syncgrads_member_arrival_lag_seconds_count{"));
  EXPECT_THAT(Get(first, "/status.json"), HasSubstr("\"job\": \"watched\""));
  EXPECT_EQ(Get(pages, "/readyz"), "200 ok\n");
  EXPECT_THAT(Get(pages, "/metrics"), HasSubstr("syncgrads_worker_loss{training_job=\"watched\""));
}

// Returns the message that a page has as JSON; an empty one if there is no such page.
template <typename Message>
Message MessageAt(const std::string& pages, const std::string& path) {
  const std::string answer = Get(pages, path);
  Message message;
  EXPECT_THAT(answer, StartsWith("200 "));
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(answer.substr(4), &message).ok());
  return message;
}

TEST(MetricsTest, AWorkersLossAndWhereItsTimeGoesAreInTheStatusAndInTheCurves) {
  Cluster cluster(1, {"--metrics=127.0.0.1:0"});
  const std::string pages = PagesOf(cluster.server(0));
  const absl::Time begin = MonotonicNow();
  const auto worker = cluster.StartWorker(WriteLongJob("reported", 3000000), 0, 1);
  v1::TrainingFigures figures;
  ASSERT_TRUE(WaitUntil([&] {
    const auto status = MessageAt<v1::GetStatusReply>(pages, "/status.json");
    if (status.jobs_size() != 1 || status.jobs(0).members_size() != 1) return false;
    figures = status.jobs(0).members(0).figures();
    return figures.step() > 0;
  })) << worker->output();
  const absl::Duration passed = MonotonicNow() - begin;
  EXPECT_GT(figures.loss(), 0);
  EXPECT_GT(figures.learning_rate(), 0);
  EXPECT_EQ(figures.device(), "cpu");
  const v1::StepTimes& times = figures.times();
  EXPECT_GT(times.compute_us(), 0u);
  EXPECT_GT(times.push_us(), 0u);
  EXPECT_GT(times.wait_us(), 0u);
  const uint64_t sum =
      times.read_us() + times.compute_us() + times.push_us() + times.wait_us() + times.apply_us();
  EXPECT_LE(sum, static_cast<uint64_t>(absl::ToInt64Microseconds(passed)));
  ASSERT_TRUE(WaitUntil([&] {
    const auto curves = MessageAt<v1::Curves>(pages, "/curves.json");
    return curves.jobs_size() == 1 && curves.jobs(0).training_size() >= 2;
  }));
}

TEST(MetricsTest, AFollowerWithoutItsCoordinatorLivesAndIsNotReady) {
  Cluster cluster(2, {"--metrics=127.0.0.1:0"});
  const std::string pages = PagesOf(cluster.server(1));
  ASSERT_TRUE(WaitUntil([&] { return Get(pages, "/readyz") == "200 ok\n"; }));
  cluster.server(0).Kill(SIGKILL);
  ASSERT_TRUE(WaitUntil([&] {
    return Get(pages, "/readyz") == "503 server 1 has no connection to the coordinator\n";
  })) << Get(pages, "/readyz");
  EXPECT_EQ(Get(pages, "/livez"), "200 ok\n");
}

TEST(MetricsTest, AnAddressWithoutAPortIsRefused) {
  const Finished server = EndOf("server/ps-server", {"--port=0", "--state=none", "--metrics=9464"});
  EXPECT_EQ(server.exit, ExitCode(1));
  EXPECT_THAT(server.output, HasSubstr("--metrics is \"9464\""));
  const Finished worker = EndOf("worker/ps-worker", {"--job=x", "--metrics=localhost"});
  EXPECT_EQ(worker.exit, ExitCode(2));
  EXPECT_THAT(worker.output, HasSubstr("--metrics is \"localhost\""));
}

TEST(MetricsTest, APortInUseIsARetryableError) {
  Cluster cluster(1, {"--metrics=127.0.0.1:0"});
  const std::string address = PagesOf(cluster.server(0)).substr(std::string("http://").size());
  const Finished server =
      EndOf("server/ps-server", {"--port=0", "--state=none", "--metrics=" + address});
  EXPECT_EQ(server.exit, ExitCode(128));
  EXPECT_THAT(server.output, HasSubstr(address));
  const Finished worker = EndOf("worker/ps-worker", {"--job=x", "--metrics=" + address});
  EXPECT_EQ(worker.exit, ExitCode(200));
  EXPECT_THAT(worker.output, HasSubstr(address));
}

}  // namespace
}  // namespace syncgrads::testing
