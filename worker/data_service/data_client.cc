#include "worker/data_service/data_client.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/names.h"
#include "common/status_macros.h"
#include "proto/served_data.pb.h"
#include "worker/batches/data_set.h"
#include "worker/data/shards.h"
#include "worker/data_service/row_stream.h"

namespace syncgrads {
namespace {

// The largest side of an image, and its largest number of channels, as in a job file.
constexpr int64_t kMostOfImage = 1 << 14;
// The largest row. Its numbers in F32 are a batch of 256 MiB, the largest that is served.
constexpr int64_t kMostNumbers = int64_t{1} << 26;
// The rows of a worker. Their targets are a message of 512 MiB, the largest that is received.
constexpr uint64_t kMostRows = uint64_t{1} << 26;
// The names of features that all shards of a worker have together.
constexpr uint64_t kMostNames = uint64_t{1} << 24;

v1::OpenServedData::Targets ToProto(TargetKind kind) {
  switch (kind) {
    case TargetKind::kNone:
      return v1::OpenServedData::NONE;
    case TargetKind::kNumber:
      return v1::OpenServedData::NUMBERS;
    case TargetKind::kClass:
      return v1::OpenServedData::CLASSES;
  }
  return v1::OpenServedData::NONE;
}

class StreamedRows : public RowSource {
 public:
  explicit StreamedRows(std::unique_ptr<RowStream> stream) : stream_(std::move(stream)) {}

  absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) override {
    v1::AskForRows ask;
    for (const RowId& row : rows) {
      ask.add_shards(static_cast<uint32_t>(row.shard));
      ask.add_rows(row.row);
    }
    ask.set_training(use.training);
    ask.set_seed(use.seed);
    ask.set_step(use.step);
    return stream_->Ask(std::move(ask));
  }

  absl::StatusOr<RowBatch> Take(uint64_t asked) override {
    SYNCGRADS_ASSIGN_OR_RETURN(v1::RowsAskedFor rows, stream_->Take(asked));
    if (rows.left_out_size() != rows.reasons_size()) {
      return absl::DataLossError(
          absl::StrCat("malformed batch from the data server: ", rows.left_out_size(),
                       " rows left out, but ", rows.reasons_size(), " reasons"));
    }
    RowBatch batch;
    batch.has_bytes = rows.has_bytes();
    batch.features = std::move(*rows.mutable_features());
    batch.left_out.assign(rows.left_out().begin(), rows.left_out().end());
    for (const std::string& reason : rows.reasons()) {
      batch.reasons.push_back(absl::DataLossError(Printable(reason)));
    }
    return batch;
  }

  bool IsRead(uint64_t) override { return false; }
  void Forget(uint64_t asked) override { stream_->Forget(asked); }
  void Reuse(std::string) override {}

 private:
  const std::unique_ptr<RowStream> stream_;
};

// "2x3x4": channels, height and width, whatever kind of rows they are.
std::string SidesOf(const Shape& shape) {
  return absl::StrCat(shape.channels, "x", shape.height, "x", shape.width);
}

// Returns the shape of a row. It is that of the job file if that has one.
absl::StatusOr<Shape> ShapeOf(const v1::OpenedServedData& opened, const v1::ImageSpec& image) {
  const Shape shape = {opened.channels(), opened.height(), opened.width(), opened.is_image()};
  const int64_t features = opened.features_size();
  const bool is_given = image.channels() > 0;
  if (is_given || !shape.is_image) {
    const Shape needed = is_given ? Shape::Image(image.channels(), image.height(), image.width())
                                  : Shape::Flat(features);
    if (shape != needed) {
      return absl::DataLossError(absl::StrCat(
          "a row is ", shape.is_image ? "an image" : "a list", " of ", SidesOf(shape),
          " numbers, must be ", needed.is_image ? "an image" : "a list", " of ", SidesOf(needed)));
    }
  }
  const int64_t most = shape.is_image ? kMostOfImage : kMostNumbers;
  for (const int64_t side : {shape.channels, shape.height, shape.width}) {
    if (side >= 1 && side <= most) continue;
    return absl::DataLossError(absl::StrCat("a row has ", SidesOf(shape),
                                            " numbers, each factor must be from 1 to ", most));
  }
  // The sides are small enough that the product does not overflow.
  if (shape.size() > kMostNumbers) {
    return absl::DataLossError(
        absl::StrCat("a row has ", SidesOf(shape), " numbers, must have at most ", kMostNumbers));
  }
  if (features > 0 && shape.size() != features) {
    return absl::DataLossError(
        absl::StrCat("a row has ", SidesOf(shape), " numbers, but ", features, " features"));
  }
  return shape;
}

// Checks that the shards are those that `request` selects, and that they are not too large.
absl::Status CheckShards(const v1::OpenedServedData& opened, const v1::DataSpec& spec,
                         const ServedDataRequest& request) {
  const uint64_t total = opened.total_shards();
  if (spec.shards() > 0 && total != spec.shards()) {
    return absl::DataLossError(
        absl::StrCat("the job has ", total, " shards, must have ", spec.shards()));
  }
  if (total < 1 || total > kMostShards) {
    return absl::DataLossError(
        absl::StrCat("the job has ", total, " shards, must have from 1 to ", kMostShards));
  }
  const uint64_t first = request.owners > 0 ? 0 : request.rank;
  const uint64_t step = request.owners > 0 ? 1 : request.world_size;
  const uint64_t own = total > first ? (total - first + step - 1) / step : 0;
  const auto shards = static_cast<uint64_t>(opened.shards_size());
  if (shards < 1 || shards != own) {
    return absl::DataLossError(absl::StrCat("this worker received ", shards, " of ", total,
                                            " shards, must be ", std::max<uint64_t>(own, 1)));
  }
  const auto features = static_cast<uint64_t>(opened.features_size());
  if (shards * features > kMostNames) {
    return absl::DataLossError(absl::StrCat(shards, " shards have ", features,
                                            " features each, must be at most ", kMostNames,
                                            " together"));
  }
  uint64_t rows = 0;
  for (uint64_t i = 0; i < shards; ++i) {
    const v1::ServedShard& shard = opened.shards(static_cast<int>(i));
    if (shard.number() != first + i * step) {
      return absl::DataLossError(absl::StrCat("shard ", i, " of this worker has number ",
                                              shard.number(), ", must be ", first + i * step));
    }
    rows += std::min(shard.rows(), kMostRows + 1);
  }
  if (rows <= kMostRows) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("this worker has ", rows, " rows, must have at most ", kMostRows));
}

absl::StatusOr<Table> TableOf(const v1::ServedShard& shard, const v1::DataSpec& spec,
                              const ServedDataRequest& request,
                              const std::vector<std::string>& features) {
  const auto wrong = [&](absl::string_view what, int count) {
    return absl::DataLossError(absl::StrCat("shard ", shard.number(), " of ", shard.rows(),
                                            " rows was served with ", count, " ", what));
  };
  Table table;
  table.rows = shard.rows();
  table.feature_names = features;
  table.target_kind = request.target_kind;
  table.targets.assign(shard.targets().begin(), shard.targets().end());
  table.targets_per_row = shard.targets_per_row();
  table.weights.assign(shard.weights().begin(), shard.weights().end());
  for (const v1::ServedClass& one : shard.classes()) {
    table.classes.push_back({one.name(), one.place()});
  }
  const bool has_targets = request.target_kind != TargetKind::kNone;
  const size_t targets_per_row = TargetsPerRow(spec);
  if (has_targets && table.targets_per_row != targets_per_row) {
    return absl::DataLossError(absl::StrCat("shard ", shard.number(), " has ",
                                            table.targets_per_row, " targets per row, must be ",
                                            targets_per_row));
  }
  if (table.targets.size() != (has_targets ? table.rows * targets_per_row : 0)) {
    return wrong("targets", shard.targets_size());
  }
  const bool needs_weights = has_targets && !spec.weight_column().empty();
  if ((needs_weights || !table.weights.empty()) && table.weights.size() != table.rows) {
    return wrong("weights", shard.weights_size());
  }
  for (const double target : table.targets) {
    if (request.target_kind != TargetKind::kClass) break;
    if (!(target >= 0 && target < static_cast<double>(table.classes.size()))) {
      return wrong("classes, but has a target out of range", shard.classes_size());
    }
  }
  return table;
}

// Checks all that the rows of a job depend on. Errors: DataLoss.
absl::StatusOr<ServedData> DataOf(const v1::OpenedServedData& opened, const v1::DataSpec& spec,
                                  const ServedDataRequest& request) {
  ServedData data;
  SYNCGRADS_ASSIGN_OR_RETURN(data.shape, ShapeOf(opened, spec.image()));
  SYNCGRADS_RETURN_IF_ERROR(CheckShards(opened, spec, request));
  data.features.assign(opened.features().begin(), opened.features().end());
  data.data.total_shards = opened.total_shards();
  for (const v1::ServedShard& shard : opened.shards()) {
    SYNCGRADS_ASSIGN_OR_RETURN(Table table, TableOf(shard, spec, request, data.features));
    data.data.shards.push_back({shard.number(), std::move(table)});
  }
  return data;
}

class DataHosts : public DataHost {
 public:
  DataHosts(const v1::JobFile& job, std::string token, absl::Duration timeout,
            const ChannelSecurity& security)
      : job_(job), token_(std::move(token)), timeout_(timeout), security_(security) {}

  absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const override {
    const auto& hosts = job_.data().served_from();
    const std::string& host = hosts[static_cast<int>(request.rank % hosts.size())];
    auto stream = std::make_unique<RowStream>(host, timeout_, security_);
    v1::OpenServedData open;
    open.set_token(token_);
    open.set_job(job_.name());
    *open.mutable_data() = job_.data();
    open.mutable_data()->clear_served_from();
    open.mutable_data()->set_partition(request.partition);
    open.mutable_data()->set_split(request.split);
    open.set_rank(request.rank);
    open.set_world_size(request.world_size);
    open.set_owners(request.owners);
    open.set_targets(ToProto(request.target_kind));
    open.set_dtype(job_.dtype());
    open.set_seed(job_.seed());
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::OpenedServedData opened, stream->Open(open));
    absl::StatusOr<ServedData> data = DataOf(opened, job_.data(), request);
    if (!data.ok()) {
      return absl::DataLossError(absl::StrCat("data server ", host, ": ", data.status().message()));
    }
    data->rows = std::make_shared<StreamedRows>(std::move(stream));
    return data;
  }

 private:
  const v1::JobFile job_;
  const std::string token_;
  const absl::Duration timeout_;
  const ChannelSecurity security_;
};

}  // namespace

std::shared_ptr<const DataHost> ConnectToDataHosts(const v1::JobFile& job, const std::string& token,
                                                   absl::Duration timeout,
                                                   const ChannelSecurity& security) {
  return std::make_shared<DataHosts>(job, token, timeout, security);
}

}  // namespace syncgrads
