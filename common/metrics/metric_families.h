// Collects the samples of one scrape in the text format of Prometheus.

#ifndef SYNCGRADS_COMMON_METRICS_METRIC_FAMILIES_H_
#define SYNCGRADS_COMMON_METRICS_METRIC_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Pairs of a label's name and its value.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A histogram's buckets in ascending order, without the one for infinity.
struct HistogramSample {
  struct Bucket {
    double upper_bound = 0;
    // The number of observations in this bucket only.
    uint64_t count = 0;
  };
  std::vector<Bucket> buckets;
  // The number of observations above the last bucket.
  uint64_t above = 0;
  // The sum of all observations.
  double sum = 0;
};

// The families of metrics, in the order in which they were first added to. A family keeps the help
// text and the type of its first sample. The caller adds each combination of labels once.
//
// Not thread-safe.
class MetricFamilies {
 public:
  void Gauge(absl::string_view name, absl::string_view help, MetricLabels labels, double value);
  void Counter(absl::string_view name, absl::string_view help, MetricLabels labels, double value);
  void Histogram(absl::string_view name, absl::string_view help, MetricLabels labels,
                 const HistogramSample& sample);

  const std::vector<prometheus::MetricFamily>& all() const { return families_; }
  // Returns the families in the text format, version 0.0.4.
  std::string Text() const;

 private:
  prometheus::ClientMetric& Add(absl::string_view name, absl::string_view help,
                                prometheus::MetricType type, MetricLabels labels);

  std::vector<prometheus::MetricFamily> families_;
  std::unordered_map<std::string, size_t> positions_;
};

// The media type of MetricFamilies::Text.
inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_METRICS_METRIC_FAMILIES_H_
