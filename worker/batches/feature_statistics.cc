#include "worker/batches/feature_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batches/batch_reader.h"
#include "worker/team/gather_shards.h"

namespace syncgrads {
namespace {

// The moments of some rows.
struct Moments {
  explicit Moments(size_t columns)
      : minimum(columns, std::numeric_limits<double>::infinity()),
        maximum(columns, -std::numeric_limits<double>::infinity()),
        mean(columns),
        squares(columns) {}

  // Adds a row (Welford 1962).
  void Add(const double* row) {
    rows += 1;
    for (size_t i = 0; i < mean.size(); ++i) {
      minimum[i] = std::min(minimum[i], row[i]);
      maximum[i] = std::max(maximum[i], row[i]);
      const double distance = row[i] - mean[i];
      mean[i] += distance / rows;
      squares[i] += distance * (row[i] - mean[i]);
    }
  }

  void Add(const Moments& other) {
    if (other.rows == 0) return;
    const double all = rows + other.rows;
    for (size_t i = 0; i < mean.size(); ++i) {
      minimum[i] = std::min(minimum[i], other.minimum[i]);
      maximum[i] = std::max(maximum[i], other.maximum[i]);
      const double distance = other.mean[i] - mean[i];
      mean[i] += distance * (other.rows / all);
      squares[i] += other.squares[i] + distance * distance * (rows * other.rows / all);
    }
    rows = all;
  }

  double rows = 0;
  std::vector<double> minimum;
  std::vector<double> maximum;
  std::vector<double> mean;
  // The sum of squared distances from the mean.
  std::vector<double> squares;
};

std::string Encode(const Moments& moments) {
  std::string bytes(reinterpret_cast<const char*>(&moments.rows), sizeof(double));
  for (const auto* numbers :
       {&moments.minimum, &moments.maximum, &moments.mean, &moments.squares}) {
    bytes.append(reinterpret_cast<const char*>(numbers->data()), numbers->size() * sizeof(double));
  }
  return bytes;
}

absl::StatusOr<Moments> Decode(const std::string& bytes, size_t columns) {
  Moments moments(columns);
  if (bytes.size() != sizeof(double) * (1 + 4 * columns)) {
    return absl::DataLossError(
        absl::StrCat("statistics of ", columns, " features have ", bytes.size(), " bytes"));
  }
  const char* from = bytes.data();
  std::memcpy(&moments.rows, from, sizeof(double));
  from += sizeof(double);
  for (auto* numbers : {&moments.minimum, &moments.maximum, &moments.mean, &moments.squares}) {
    std::memcpy(numbers->data(), from, columns * sizeof(double));
    from += columns * sizeof(double);
  }
  return moments;
}

}  // namespace

absl::StatusOr<FeatureStatistics> FindStatistics(const v1::JobFile& job, const DataSet& data,
                                                 uint32_t world_size, const DeviceChoice& device,
                                                 DamagedImages* damaged, Team& team) {
  const auto columns = static_cast<size_t>(data.shape.size());
  const std::vector<RowId> all =
      RowsOf(data.data, job.data().validation_every(), /*held_out=*/false);
  RowsInBatches<double> reader(job, job.data(), data, world_size, device);
  std::map<uint64_t, std::string> ours;
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end =
        std::find_if(begin, all.end(), [&](const RowId& row) { return row.shard != begin->shard; });
    Moments moments(columns);
    SYNCGRADS_RETURN_IF_ERROR(
        reader.ForEach(absl::MakeConstSpan(&*begin, static_cast<size_t>(end - begin)), damaged,
                       [&](const Matrix<double>& features, absl::Span<const double>) {
                         for (Eigen::Index row = 0; row < features.rows(); ++row) {
                           moments.Add(features.row(row).data());
                         }
                         return absl::OkStatus();
                       }));
    ours[data.data.shards[begin->shard].number] = Encode(moments);
    begin = end;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const auto by_shard, GatherShards("data/statistics", ours, team));
  Moments total(columns);
  for (const auto& [number, bytes] : by_shard) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Moments moments, Decode(bytes, columns));
    total.Add(moments);
  }
  if (total.rows == 0) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  FeatureStatistics statistics;
  statistics.minimum = std::move(total.minimum);
  statistics.maximum = std::move(total.maximum);
  statistics.mean = std::move(total.mean);
  for (const double squares : total.squares) {
    statistics.deviation.push_back(std::sqrt(squares / total.rows));
  }
  return statistics;
}

}  // namespace syncgrads
