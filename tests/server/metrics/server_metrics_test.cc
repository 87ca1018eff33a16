#include "server/metrics/server_metrics.h"

#include <google/protobuf/text_format.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GetStatusReply Parse(const std::string& text) {
  v1::GetStatusReply status;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &status));
  return status;
}

std::string MetricsOf(const v1::GetStatusReply& status) {
  MetricFamilies families;
  AddServerMetrics(status, families);
  return families.Text();
}

constexpr char kCoordinator[] = R"(
  protocol_version: 1
  server_index: 0
  server {
    date_ms: 1700000010500
    coordinator_reached: true
    connections: 7
    max_connections: 100
    received { path: "tcp" codec: "raw" bytes: 10 }
    received { path: "tcp" codec: "int8" bytes: 3 }
    received { path: "shared_memory" codec: "raw" bytes: 4000000000000 }
    sent { path: "tcp" codec: "raw" bytes: 20 }
    memory_bytes: 300
    memory_free_bytes: 700
    state_free_bytes: 5000
    state_total_bytes: 8000
    state_bytes: 600
    starts: 2
    recovered_jobs: 1
    recovery_ms: 1500
  }
  jobs {
    job: "iris"
    generation: 17
    epoch {
      number: 3
      members { member: 4 name: "w0" }
      members { member: 9 name: "w1" }
    }
    members {
      member: 4 name: "w0" host: "a" rank: 0 silent_ms: 500 lease_ms: 30000
    }
    members {
      member: 9 name: "w1" host: "b" rank: 1 silent_ms: 0 lease_ms: 30000 follows: true
    }
    members { member: 5 name: "w1" host: "b" silent_ms: 90000 lease_ms: 30000 gone: true }
    members { member: 10 name: "w2" host: "c" silent_ms: 0 lease_ms: 30000 }
    checkpoints { written: 2 failed: 1 last_step: 40 last_path: "/c/40" }
    joins: 5
    reconnects: 3
    drops { reason: "lease" count: 1 }
    drops { reason: "evicted" count: 0 }
    non_finite { worker: "w1" count: 3 }
    non_finite { worker: "gone" count: 1 }
    groups {
      group: 0
      name: "model"
      chunks: 2
      open_round: 41
      late_contributions: 6
      open_chunks: 1
      oldest_open_ms: 1250
      rounds_closed: 82
      round_duration { counts: [1, 2, 3, 4, 5, 6, 7, 8, 9] sum_us: 2500000 }
      since_last_round_ms: 250
      contributors {
        member: 4
        round: 41
        arrival_lag { counts: [40, 0, 0, 0, 0, 0, 0, 0, 0] sum_us: 4000 }
      }
      contributors {
        member: 9
        round: 40
        arrival_lag { counts: [0, 0, 0, 1, 39, 0, 0, 0, 0] sum_us: 8000000 }
      }
      contributors { member: 5 round: 12 arrival_lag { counts: [0] } }
    }
  }
)";

TEST(ServerMetricsTest, TheServerHasConnectionsBytesAndMemoryInBaseUnits) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  EXPECT_THAT(text, HasSubstr("syncgrads_server_info{server_index=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_jobs 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_draining 0\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_coordinator_reached 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_connections 7\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_max_connections 100\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_received_bytes_total{path=\"tcp\",codec=\"raw\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_received_bytes_total{path=\"tcp\",codec=\"int8\"} 3\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "syncgrads_received_bytes_total{path=\"shared_memory\",codec=\"raw\"} 4000000000000\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_sent_bytes_total{path=\"tcp\",codec=\"raw\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_memory_bytes 300\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_memory_limit_bytes 1000\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_state_free_bytes 5000\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_starts 2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_state_filesystem_bytes 8000\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_state_bytes 600\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_recovered_jobs 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_recovery_duration_seconds 1.5\n"));
}

TEST(ServerMetricsTest, AFullStateDirectoryHasNoFreeBytes) {
  v1::GetStatusReply status = Parse(kCoordinator);
  status.mutable_server()->set_state_free_bytes(0);
  EXPECT_THAT(MetricsOf(status), HasSubstr("syncgrads_state_free_bytes 0\n"));
}

TEST(ServerMetricsTest, AServerWithoutAStateHasNoMetricsOfIt) {
  v1::GetStatusReply status = Parse(kCoordinator);
  status.mutable_server()->clear_starts();
  const std::string text = MetricsOf(status);
  for (const char* name : {"starts", "state_", "recover"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("syncgrads_", name))));
  }
}

TEST(ServerMetricsTest, ContributionsThatWereNotFiniteStayKnownWhenTheirWorkerHasGone) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  const auto expect = [&text](const std::string& worker, int count) {
    EXPECT_THAT(text,
                HasSubstr(absl::StrCat("syncgrads_non_finite_contributions_total{training_job="
                                       "\"iris\",member=\"",
                                       worker, "\"} ", count, "\n")));
  };
  // A count that begins at 0 can be seen to increase.
  expect("w0", 0);
  expect("w1", 3);
  expect("gone", 1);
}

TEST(ServerMetricsTest, AJobsMembersHaveTheirNamesAndTheDateOfTheirLastHeartbeat) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  EXPECT_THAT(text, HasSubstr("syncgrads_epoch{training_job=\"iris\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_members{training_job=\"iris\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("syncgrads_member_last_heartbeat_timestamp_seconds{training_job=\"iris\","
                        "member=\"w0\"} 1700000010\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_member_lease_seconds{training_job=\"iris\",member=\"w0\"} "
                              "30\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_member_follows{training_job=\"iris\",member=\"w1\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("syncgrads_member_info{training_job=\"iris\",member=\"w1\",host=\"b\","
                        "rank=\"1\"} 1\n"));
  // A newcomer has no rank yet. A member that has gone has no metrics.
  EXPECT_THAT(text,
              HasSubstr("syncgrads_member_info{training_job=\"iris\",member=\"w2\",host=\"c\","
                        "rank=\"\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("host=\"b\",rank=\"\"")));
}

TEST(ServerMetricsTest, AMemberHasWhatItHasReported) {
  v1::GetStatusReply status = Parse(kCoordinator);
  ASSERT_EQ(status.jobs(0).members(0).name(), "w0");
  EXPECT_THAT(MetricsOf(status), Not(HasSubstr("syncgrads_member_step")));
  v1::TrainingFigures& figures = *status.mutable_jobs(0)->mutable_members(0)->mutable_figures();
  figures.set_step(7);
  std::string text = MetricsOf(status);
  const std::string labels = "{training_job=\"iris\",member=\"w0\"} ";
  EXPECT_THAT(text, HasSubstr("syncgrads_member_step" + labels + "7\n"));
  for (const char* name : {"loss", "learning_rate", "phase"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("syncgrads_member_", name))));
  }
  figures.set_loss(0.5);
  figures.set_learning_rate(0.25);
  figures.mutable_times()->set_read_us(1'500'000);
  figures.mutable_times()->set_compute_us(2'000'000);
  figures.mutable_times()->set_push_us(3'000'000);
  figures.mutable_times()->set_wait_us(4'000'000);
  figures.mutable_times()->set_apply_us(5'000'000);
  text = MetricsOf(status);
  EXPECT_THAT(text, HasSubstr("syncgrads_member_loss" + labels + "0.5\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_member_learning_rate" + labels + "0.25\n"));
  for (const auto& [phase, seconds] : std::map<std::string, std::string>{
           {"read", "1.5"}, {"compute", "2"}, {"push", "3"}, {"wait", "4"}, {"apply", "5"}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("syncgrads_member_phase_seconds_total{training_job="
                                             "\"iris\",member=\"w0\",phase=\"",
                                             phase, "\"} ", seconds, "\n")));
  }
}

TEST(ServerMetricsTest, JoinsDropsAndCheckpointsAreCounted) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  EXPECT_THAT(text, HasSubstr("syncgrads_joins_total{training_job=\"iris\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_reconnects_total{training_job=\"iris\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_members_dropped_total{training_job=\"iris\","
                              "reason=\"lease\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_members_dropped_total{training_job=\"iris\","
                              "reason=\"evicted\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_checkpoints_total{training_job=\"iris\","
                              "result=\"written\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_checkpoints_total{training_job=\"iris\","
                              "result=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_last_checkpoint_step{training_job=\"iris\"} 40\n"));
}

TEST(ServerMetricsTest, AGroupHasItsRounds) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  const std::string labels = "{training_job=\"iris\",group=\"model\"} ";
  EXPECT_THAT(text, HasSubstr("syncgrads_open_round" + labels + "41\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_chunks" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_open_rounds" + labels + "1\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_oldest_open_round_seconds" + labels + "1.25\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_rounds_closed_total" + labels + "82\n"));
  EXPECT_THAT(
      text, HasSubstr("syncgrads_last_round_closed_timestamp_seconds" + labels + "1700000010.25"));
  EXPECT_THAT(text, HasSubstr("syncgrads_late_contributions_total" + labels + "6\n"));
}

TEST(ServerMetricsTest, TheBucketsOfDurationsAreThoseOfTheMessageInSeconds) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  const char* const bounds[] = {"0.001", "0.004", "0.016",  "0.064", "0.256",
                                "1.024", "4.096", "16.384", "+Inf"};
  int cumulative = 0;
  for (int i = 0; i < 9; ++i) {
    cumulative += i + 1;
    EXPECT_THAT(text, HasSubstr(absl::StrCat("syncgrads_round_duration_seconds_bucket{"
                                             "training_job=\"iris\",group=\"model\",le=\"",
                                             bounds[i], "\"} ", cumulative, "\n")));
  }
  EXPECT_THAT(text, HasSubstr("syncgrads_round_duration_seconds_sum{training_job=\"iris\","
                              "group=\"model\"} 2.5\n"));
}

TEST(ServerMetricsTest, EachMemberOfTheEpochHasItsArrivalLag) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  const std::string w1 = "{training_job=\"iris\",group=\"model\",member=\"w1\"} ";
  EXPECT_THAT(text, HasSubstr("syncgrads_member_arrival_lag_seconds_count" + w1 + "40\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_member_arrival_lag_seconds_sum" + w1 + "8\n"));
  EXPECT_THAT(text, HasSubstr("syncgrads_member_round" + w1 + "40\n"));
  // Member 5 had the same name, and is not in the epoch any more.
  EXPECT_THAT(text, Not(HasSubstr("syncgrads_member_round{training_job=\"iris\",group=\"model\","
                                  "member=\"w1\"} 12\n")));
}

TEST(ServerMetricsTest, AServerThatFollowsHasNoMetricsThatOnlyTheCoordinatorKnows) {
  v1::GetStatusReply status = Parse(kCoordinator);
  status.set_server_index(2);
  status.mutable_jobs(0)->clear_members();
  status.mutable_jobs(0)->clear_checkpoints();
  const std::string text = MetricsOf(status);
  for (const char* name :
       {"joins", "reconnects", "members_dropped", "checkpoints", "member_info"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("syncgrads_", name))));
  }
  EXPECT_THAT(text, HasSubstr("syncgrads_member_arrival_lag_seconds_count{training_job=\"iris\","
                              "group=\"model\",member=\"w1\"} 40\n"));
}

TEST(ServerMetricsTest, OnlyTheGroupsWithTheMostRoundsHaveMetrics) {
  v1::GetStatusReply status;
  v1::JobStatus& job = *status.add_jobs();
  job.set_job("wide");
  for (uint32_t i = 0; i < 1000; ++i) {
    v1::GroupStatus& group = *job.add_groups();
    group.set_group(i);
    group.set_name(absl::StrCat("g", i));
    group.set_open_round(i == 700 ? 5000 : i == 3 ? 1000 : 1);
  }
  const std::string text = MetricsOf(status);
  EXPECT_THAT(text, HasSubstr("syncgrads_groups{training_job=\"wide\"} 1000\n"));
  size_t groups = 0;
  for (size_t at = 0; (at = text.find("syncgrads_open_round{", at)) != text.npos; ++at) ++groups;
  EXPECT_EQ(groups, kMostGroupsInMetrics);
  for (const char* name : {"g0", "g3", "g700"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("group=\"", name, "\"")));
  }
}

TEST(ServerMetricsTest, NoLabelHasANameThatPrometheusUsesItself) {
  const std::string text = MetricsOf(Parse(kCoordinator));
  EXPECT_THAT(text, Not(HasSubstr("{job=")));
  EXPECT_THAT(text, Not(HasSubstr(",job=")));
  EXPECT_THAT(text, Not(HasSubstr("instance=")));
}

TEST(ReadinessTest, ACoordinatorIsReadyWithoutAnyJob) {
  EXPECT_THAT(ReadinessOf(Parse("server { coordinator_reached: true }")), IsOk());
}

TEST(ReadinessTest, AServerThatFollowsNeedsTheCoordinator) {
  ExpectError(ReadinessOf(Parse("server_index: 2")), absl::StatusCode::kUnavailable,
              {"server 2", "no connection to the coordinator"});
  EXPECT_THAT(ReadinessOf(Parse("server_index: 2 server { coordinator_reached: true }")), IsOk());
}

TEST(ReadinessTest, AServerThatIsAboutToStopIsNotReady) {
  ExpectError(ReadinessOf(Parse("server { coordinator_reached: true draining: true }")),
              absl::StatusCode::kUnavailable, {"refuses new jobs"});
}

TEST(ReadinessTest, AServerThatDoesNotLookAfterItsJobsIsNotReady) {
  EXPECT_THAT(ReadinessOf(Parse("server { coordinator_reached: true idle_ms: 9000 }")), IsOk());
  ExpectError(ReadinessOf(Parse("server { coordinator_reached: true idle_ms: 12000 }")),
              absl::StatusCode::kUnavailable, {"server 0 has not looked after its jobs for 12s"});
}

TEST(ReadinessTest, AStalledJobDoesNotMakeTheServerUnready) {
  v1::GetStatusReply status = Parse(kCoordinator);
  status.mutable_jobs(0)->mutable_groups(0)->set_oldest_open_ms(3'600'000);
  EXPECT_THAT(ReadinessOf(status), IsOk());
}

}  // namespace
}  // namespace syncgrads::server
