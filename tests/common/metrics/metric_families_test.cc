#include "common/metrics/metric_families.h"

#include <string>

#include "common/metrics/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;

TEST(MetricFamiliesTest, SamplesOfOneNameShareOneFamily) {
  MetricFamilies families;
  families.Counter("a_total", "Events.", {{"kind", "x"}}, 3);
  families.Gauge("b", "A level.", {}, 0.5);
  families.Counter("a_total", "Events.", {{"kind", "y"}}, 4);
  EXPECT_EQ(families.Text(),
            "# HELP a_total Events.\n# TYPE a_total counter\n"
            "a_total{kind=\"x\"} 3\na_total{kind=\"y\"} 4\n"
            "# HELP b A level.\n# TYPE b gauge\nb 0.5\n");
}

TEST(MetricFamiliesTest, AHistogramsBucketsAreCumulativeAndEndWithInfinity) {
  MetricFamilies families;
  families.Histogram("h_seconds", "Times.", {{"who", "w"}},
                     {.buckets = {{0.5, 2}, {2, 3}}, .above = 4, .sum = 9.25});
  const std::string text = families.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE h_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{who=\"w\",le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{who=\"w\",le=\"2\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{who=\"w\",le=\"+Inf\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_count{who=\"w\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_sum{who=\"w\"} 9.25\n"));
}

TEST(MetricFamiliesTest, NamesInLabelsAreEscaped) {
  MetricFamilies families;
  families.Gauge("g", "A level.", {{"name", "a\"b\\c\nd"}}, 1);
  EXPECT_THAT(families.Text(), HasSubstr("g{name=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST(MetricFamiliesTest, LargeCountsKeepTheirDigits) {
  MetricFamilies families;
  families.Counter("bytes_total", "Bytes.", {}, 1234567890123456);
  EXPECT_THAT(families.Text(), HasSubstr("bytes_total 1234567890123456\n"));
}

TEST(ProcessMetricsTest, AProcessHasItsUsualMetrics) {
  MetricFamilies families;
  AddProcessMetrics({{"program", "test"}, {"version", "1.2"}}, families);
  const std::string text = families.Text();
  EXPECT_THAT(text, HasSubstr("syncgrads_build_info{program=\"test\",version=\"1.2\","
                              "protocol_version=\""));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_start_time_seconds"}) {
    EXPECT_THAT(text, HasSubstr(std::string("# TYPE ") + name + " "));
  }
}

}  // namespace
}  // namespace syncgrads
