#include "worker/data_service/served_rows_maker.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/util/message_differencer.h"
#include "worker/train/compute.h"

namespace syncgrads {
namespace {

using google::protobuf::util::MessageDifferencer;

// The data without what a worker may set differently.
v1::DataSpec WhatMustBeEqual(v1::DataSpec data) {
  data.clear_served_from();
  data.clear_partition();
  data.clear_split();
  return data;
}

absl::Status CheckSameJob(const v1::JobFile& job, const v1::OpenServedData& request) {
  if (request.job() != job.name()) {
    return absl::FailedPreconditionError(absl::StrCat("the worker's job is \"", request.job(),
                                                      "\", but this server has the data of job \"",
                                                      job.name(), "\""));
  }
  const v1::DataSpec ours = WhatMustBeEqual(job.data());
  const v1::DataSpec theirs = WhatMustBeEqual(request.data());
  if (MessageDifferencer::Equals(ours, theirs)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the worker's data is { ", theirs.ShortDebugString(),
                   " }, but this server's is { ", ours.ShortDebugString(), " }"));
}

absl::StatusOr<TargetKind> TargetKindOf(v1::OpenServedData::Targets targets) {
  switch (targets) {
    case v1::OpenServedData::NONE:
      return TargetKind::kNone;
    case v1::OpenServedData::NUMBERS:
      return TargetKind::kNumber;
    case v1::OpenServedData::CLASSES:
      return TargetKind::kClass;
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown kind of targets ", targets));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedRowsMaker>> ServedRowsMaker::Open(
    const Job& job, const v1::OpenServedData& request) {
  SYNCGRADS_RETURN_IF_ERROR(CheckSameJob(job.file, request));
  if (request.dtype() != v1::F32 && request.dtype() != v1::F64) {
    return absl::InvalidArgumentError(
        absl::StrCat("features must be F32 or F64, not ", v1::DType_Name(request.dtype())));
  }
  if (request.owners() == 0 && request.rank() >= request.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(),
                                                   " is not less than the world size of ",
                                                   request.world_size(), " workers"));
  }
  ServedDataRequest rows = {request.rank(), request.world_size(), request.owners(),
                            TargetKind::kNone};
  if (request.owners() > 0) {
    rows.rank = 0;
    rows.world_size = 1;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(rows.target_kind, TargetKindOf(request.targets()));
  Job of_worker = job;
  of_worker.file.mutable_data()->set_partition(request.data().partition());
  of_worker.file.mutable_data()->set_split(request.data().split());
  SYNCGRADS_ASSIGN_OR_RETURN(DataSet data, LoadRows(of_worker, rows));
  OwnRowsOptions options;
  options.dtype = request.dtype();
  // Each worker of the job may have a call, and the calls share the processors.
  const uint32_t calls = std::max(request.world_size(), request.owners());
  options.threads = ReadersOf(job.file, job.file.data(), calls, DeviceChoice());
  const uint32_t timeout_s = job.file.data().imagenet().timeout_s();
  if (timeout_s != 0) options.timeout = absl::Seconds(timeout_s);
  return absl::WrapUnique(new ServedRowsMaker(std::move(data), options));
}

v1::OpenedServedData ServedRowsMaker::Describe() const {
  v1::OpenedServedData opened;
  opened.set_total_shards(data_.data.total_shards);
  opened.mutable_features()->Assign(data_.features.begin(), data_.features.end());
  opened.set_is_image(data_.shape.is_image);
  opened.set_channels(data_.shape.channels);
  opened.set_height(data_.shape.height);
  opened.set_width(data_.shape.width);
  for (const Shard& shard : data_.data.shards) {
    v1::ServedShard& to = *opened.add_shards();
    to.set_number(shard.number);
    to.set_rows(shard.table.rows);
    to.set_targets_per_row(shard.table.targets_per_row);
    to.mutable_targets()->Assign(shard.table.targets.begin(), shard.table.targets.end());
    to.mutable_weights()->Assign(shard.table.weights.begin(), shard.table.weights.end());
    for (const ClassName& one : shard.table.classes) {
      v1::ServedClass& to_class = *to.add_classes();
      to_class.set_name(one.name);
      to_class.set_place(one.place);
    }
  }
  return opened;
}

absl::StatusOr<v1::RowsAskedFor> ServedRowsMaker::Make(const v1::AskForRows& ask) {
  if (ask.shards_size() != ask.rows_size()) {
    return absl::InvalidArgumentError(absl::StrCat("malformed request for rows: ", ask.rows_size(),
                                                   " row numbers, but ", ask.shards_size(),
                                                   " shards"));
  }
  std::vector<RowId> rows;
  for (int i = 0; i < ask.rows_size(); ++i) {
    const RowId row = {ask.shards(i), ask.rows(i)};
    const std::vector<Shard>& shards = data_.data.shards;
    if (row.shard >= shards.size() || row.row >= shards[row.shard].table.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown row ", row.row, " of shard ", row.shard, " of ", shards.size()));
    }
    rows.push_back(row);
  }
  const uint64_t bytes = rows.size() * source_.row_bytes();
  if (bytes > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", rows.size(), " rows has ", bytes, " bytes, but at most ", kMostBytes,
        " are served at a time: reduce batch_size or increase micro_batches"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t asked,
                             source_.Ask(rows, {ask.training(), ask.seed(), ask.step()}));
  SYNCGRADS_ASSIGN_OR_RETURN(RowBatch batch, source_.Take(asked));
  v1::RowsAskedFor made;
  made.set_has_bytes(batch.has_bytes);
  *made.mutable_features() = std::move(batch.features);
  made.mutable_left_out()->Assign(batch.left_out.begin(), batch.left_out.end());
  for (const absl::Status& reason : batch.reasons) made.add_reasons(std::string(reason.message()));
  return made;
}

}  // namespace syncgrads
