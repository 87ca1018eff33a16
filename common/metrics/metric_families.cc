#include "common/metrics/metric_families.h"

#include <prometheus/text_serializer.h>

#include <limits>

namespace syncgrads {

prometheus::ClientMetric& MetricFamilies::Add(absl::string_view name, absl::string_view help,
                                              prometheus::MetricType type, MetricLabels labels) {
  const auto [found, is_new] = positions_.try_emplace(std::string(name), families_.size());
  if (is_new) families_.push_back({std::string(name), std::string(help), type, {}});
  prometheus::ClientMetric& metric = families_[found->second].metric.emplace_back();
  metric.label.reserve(labels.size());
  for (auto& [label, value] : labels) metric.label.push_back({label, std::move(value)});
  return metric;
}

void MetricFamilies::Gauge(absl::string_view name, absl::string_view help, MetricLabels labels,
                           double value) {
  Add(name, help, prometheus::MetricType::Gauge, std::move(labels)).gauge.value = value;
}

void MetricFamilies::Counter(absl::string_view name, absl::string_view help, MetricLabels labels,
                             double value) {
  Add(name, help, prometheus::MetricType::Counter, std::move(labels)).counter.value = value;
}

void MetricFamilies::Histogram(absl::string_view name, absl::string_view help, MetricLabels labels,
                               const HistogramSample& sample) {
  prometheus::ClientMetric::Histogram& histogram =
      Add(name, help, prometheus::MetricType::Histogram, std::move(labels)).histogram;
  uint64_t count = 0;
  for (const HistogramSample::Bucket& bucket : sample.buckets) {
    count += bucket.count;
    histogram.bucket.push_back({count, bucket.upper_bound});
  }
  count += sample.above;
  histogram.bucket.push_back({count, std::numeric_limits<double>::infinity()});
  histogram.sample_count = count;
  histogram.sample_sum = sample.sum;
}

std::string MetricFamilies::Text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

}  // namespace syncgrads
