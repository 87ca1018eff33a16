#include "worker/data_service/data_client.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/data_service/row_stream.h"

namespace syncgrads {
namespace {

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
      batch.reasons.push_back(absl::DataLossError(reason));
    }
    return batch;
  }

  bool IsRead(uint64_t) override { return false; }
  void Forget(uint64_t asked) override { stream_->Forget(asked); }
  void Reuse(std::string) override {}

 private:
  const std::unique_ptr<RowStream> stream_;
};

absl::StatusOr<Table> TableOf(const v1::ServedShard& shard, const ServedDataRequest& request,
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
  // The division comes first: the product could overflow.
  const bool fits = has_targets ? table.targets_per_row > 0 &&
                                      table.targets.size() / table.targets_per_row == table.rows &&
                                      table.targets.size() % table.targets_per_row == 0
                                : table.targets.empty();
  if (!fits) {
    return wrong("targets", shard.targets_size());
  }
  if (!table.weights.empty() && table.weights.size() != table.rows) {
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

class DataHosts : public DataHost {
 public:
  DataHosts(const v1::JobFile& job, std::string token, absl::Duration timeout,
            const ChannelSecurity& security)
      : job_(job), token_(std::move(token)), timeout_(timeout), security_(security) {}

  absl::StatusOr<ServedData> Open(const ServedDataRequest& request) const override {
    const auto& hosts = job_.data().served_from();
    auto stream = std::make_unique<RowStream>(hosts[static_cast<int>(request.rank % hosts.size())],
                                              timeout_, security_);
    v1::OpenServedData open;
    open.set_token(token_);
    open.set_job(job_.name());
    *open.mutable_data() = job_.data();
    open.mutable_data()->clear_served_from();
    open.mutable_data()->set_partition(request.partition);
    open.set_rank(request.rank);
    open.set_world_size(request.world_size);
    open.set_owners(request.owners);
    open.set_targets(ToProto(request.target_kind));
    open.set_dtype(job_.dtype());
    open.set_seed(job_.seed());
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::OpenedServedData opened, stream->Open(open));
    ServedData data;
    data.features.assign(opened.features().begin(), opened.features().end());
    data.data.total_shards = opened.total_shards();
    for (const v1::ServedShard& shard : opened.shards()) {
      SYNCGRADS_ASSIGN_OR_RETURN(Table table, TableOf(shard, request, data.features));
      data.data.shards.push_back({shard.number(), std::move(table)});
    }
    if (data.data.shards.empty()) return absl::DataLossError("the data server sent no shard");
    data.shape = {opened.channels(), opened.height(), opened.width(), opened.is_image()};
    data.rows = std::make_shared<StreamedRows>(std::move(stream));
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
