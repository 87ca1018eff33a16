#include "worker/train/data_set.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

absl::Status CheckFeatures(const std::vector<std::string>& ours, absl::string_view our_place,
                           const std::vector<std::string>& theirs, absl::string_view their_place) {
  if (ours == theirs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the features of ", our_place, " are ", absl::StrJoin(ours, ", "), "; those of ",
                   their_place, " are ", absl::StrJoin(theirs, ", ")));
}

// The contents of the tables of one worker's shards.
struct Contents {
  std::vector<std::string> features;
  std::vector<ClassName> classes;
};

absl::StatusOr<Contents> ContentsOf(const WorkerData& data) {
  Contents contents;
  const Shard& first = data.shards.front();
  contents.features = first.table.feature_names;
  for (const Shard& shard : data.shards) {
    SYNCGRADS_RETURN_IF_ERROR(CheckFeatures(contents.features, absl::StrCat("shard ", first.number),
                                            shard.table.feature_names,
                                            absl::StrCat("shard ", shard.number)));
    contents.classes.insert(contents.classes.end(), shard.table.classes.begin(),
                            shard.table.classes.end());
  }
  return contents;
}

std::string Encode(const Contents& contents) {
  std::vector<std::string> classes;
  for (const ClassName& one : contents.classes) {
    classes.push_back(one.name);
    classes.push_back(one.place);
  }
  const std::string parts[] = {EncodeStrings(contents.features), EncodeStrings(classes)};
  return EncodeStrings(parts);
}

absl::StatusOr<Contents> Decode(absl::string_view bytes) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> parts, DecodeStrings(bytes));
  if (parts.size() != 2) return absl::DataLossError("malformed columns from another worker");
  Contents contents;
  SYNCGRADS_ASSIGN_OR_RETURN(contents.features, DecodeStrings(parts[0]));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> classes, DecodeStrings(parts[1]));
  if (classes.size() % 2 != 0) return absl::DataLossError("malformed classes from another worker");
  for (size_t i = 0; i < classes.size(); i += 2) {
    contents.classes.push_back({classes[i], classes[i + 1]});
  }
  return contents;
}

// Gathers the contents of all workers' shards and checks that their features are the
// same. Class names are in rank order.
absl::StatusOr<Contents> Agree(const Contents& ours, Team& team) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                             team.Gather("data/columns", Encode(ours)));
  Contents all;
  all.features = ours.features;
  for (size_t i = 0; i < gathered.size(); ++i) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Contents theirs, Decode(gathered[i]));
    SYNCGRADS_RETURN_IF_ERROR(
        CheckFeatures(ours.features, "this worker", theirs.features, absl::StrCat("worker ", i)));
    all.classes.insert(all.classes.end(), theirs.classes.begin(), theirs.classes.end());
  }
  return all;
}

// Replaces each target, a position in the table's own class list, by the class number.
absl::Status Number(const Classes& classes, uint32_t outputs, Table& table) {
  std::vector<double> numbers;
  for (const ClassName& one : table.classes) {
    SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t number, classes.NumberOf(one, outputs));
    numbers.push_back(number);
  }
  for (double& target : table.targets) target = numbers[static_cast<size_t>(target)];
  return absl::OkStatus();
}

// Returns one number per channel. `given` has none (`usual` is used), one for all
// channels, or one per channel.
absl::StatusOr<std::vector<double>> OfChannels(const google::protobuf::RepeatedField<double>& given,
                                               absl::string_view name, int64_t channels,
                                               double usual) {
  if (given.size() == channels) return std::vector<double>(given.begin(), given.end());
  if (given.size() <= 1) {
    return std::vector<double>(static_cast<size_t>(channels), given.empty() ? usual : given[0]);
  }
  return absl::InvalidArgumentError(absl::StrCat("data.image.", name, " has ", given.size(),
                                                 " numbers, but the images have ", channels,
                                                 " channels"));
}

absl::Status SetShape(const v1::DataSpec& spec, DataSet& set) {
  const auto features = static_cast<int64_t>(set.features.size());
  const std::shared_ptr<const ImageSource>& images = set.data.shards.front().table.images;
  if (images == nullptr && !spec.has_image()) {
    set.shape = Shape::Flat(features);
    return absl::OkStatus();
  }
  const v1::ImageSpec& image = spec.image();
  if (images != nullptr) {
    set.shape = images->shape();
  } else {
    set.shape = Shape::Image(image.channels(), image.height(), image.width());
    if (set.shape.size() != features) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.image is ", ToString(set.shape), ", which is ", set.shape.size(),
                       " numbers, but a row has ", features, " features"));
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<double> mean,
                             OfChannels(image.mean(), "mean", set.shape.channels, 0));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<double> deviation,
                             OfChannels(image.std(), "std", set.shape.channels, 1));
  for (size_t i = 0; i < mean.size(); ++i) {
    set.scale.factor.push_back(1 / deviation[i]);
    set.scale.addend.push_back(-mean[i] / deviation[i]);
  }
  return absl::OkStatus();
}

// Converts a row of planes, channel by channel, to the order of Shape, and normalises it.
template <typename T>
void FillPlanes(const DataSet& data, absl::Span<const double> row, T* pixels) {
  const size_t positions = static_cast<size_t>(data.shape.positions());
  const size_t channels = static_cast<size_t>(data.shape.channels);
  for (size_t channel = 0; channel < channels; ++channel) {
    const double* plane = row.data() + channel * positions;
    const double factor = data.scale.factor[channel];
    const double addend = data.scale.addend[channel];
    for (size_t i = 0; i < positions; ++i) {
      pixels[i * channels + channel] = static_cast<T>(plane[i] * factor + addend);
    }
  }
}

std::shared_ptr<const Storage> StorageOf(const Job& job) {
  return job.storage != nullptr ? job.storage : std::make_shared<FileStorage>(job.directory);
}

}  // namespace

TargetKind TargetKindOf(const v1::LossSpec& loss) {
  const bool custom_numbers = loss.custom().targets() == v1::CustomLossSpec::NUMBERS;
  return loss.has_squared_error() || custom_numbers ? TargetKind::kNumber : TargetKind::kClass;
}

uint32_t ClassCount(const v1::JobFile& job) {
  if (TargetKindOf(job.loss()) == TargetKind::kNumber) return 0;
  if (job.loss().has_sigmoid_cross_entropy()) return 2;
  return job.model().layers(job.model().layers_size() - 1).dense().outputs();
}

namespace {

// The serving process has already converted the rows to the model's input.
absl::StatusOr<DataSet> OpenServed(const Job& job, const ServedDataRequest& request) {
  SYNCGRADS_ASSIGN_OR_RETURN(ServedData opened, job.data_host->Open(request));
  DataSet set;
  set.data = std::move(opened.data);
  set.features = std::move(opened.features);
  set.shape = opened.rows->shape();
  set.served = std::move(opened.rows);
  return set;
}

// Returns the data specification for all shards. If neither the job nor the source has a
// number of shards, it is `owners`.
absl::StatusOr<v1::DataSpec> SpecFor(const Job& job, uint32_t owners) {
  v1::DataSpec data = job.file.data();
  if (owners == 0 || data.shards() != 0) return data;
  SYNCGRADS_ASSIGN_OR_RETURN(const bool has_shards, HasShardDirectories(data, *StorageOf(job)));
  if (!has_shards) data.set_shards(owners);
  return data;
}

absl::StatusOr<DataSet> LoadFor(const Job& job, const DataSetOptions& options, uint32_t owners,
                                Team& team) {
  const TargetKind kind = options.with_targets ? TargetKindOf(job.file.loss()) : TargetKind::kNone;
  SYNCGRADS_ASSIGN_OR_RETURN(DataSet set,
                             LoadRows(job, {team.rank(), team.world_size(), owners, kind}));
  SYNCGRADS_ASSIGN_OR_RETURN(const Contents ours, ContentsOf(set.data));
  SYNCGRADS_ASSIGN_OR_RETURN(const Contents all, Agree(ours, team));
  set.classes = options.classes;
  if (kind != TargetKind::kClass) return set;
  const uint32_t count = ClassCount(job.file);
  if (!set.classes.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(set.classes, Classes::Find(all.classes, count));
  }
  for (Shard& shard : set.data.shards) {
    SYNCGRADS_RETURN_IF_ERROR(Number(*set.classes, count, shard.table));
  }
  return set;
}

}  // namespace

absl::StatusOr<DataSet> LoadRows(const Job& job, const ServedDataRequest& request) {
  if (job.data_host != nullptr) return OpenServed(job, request);
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::DataSpec spec, SpecFor(job, request.owners));
  DataSet set;
  SYNCGRADS_ASSIGN_OR_RETURN(set.data, LoadShards(spec, StorageOf(job), request.target_kind,
                                                  request.rank, request.world_size, *job.readers));
  SYNCGRADS_ASSIGN_OR_RETURN(Contents contents, ContentsOf(set.data));
  set.features = std::move(contents.features);
  SYNCGRADS_RETURN_IF_ERROR(SetShape(spec, set));
  return set;
}

absl::StatusOr<DataSet> LoadDataSet(const Job& job, const DataSetOptions& options, Team& team) {
  return LoadFor(job, options, /*owners=*/0, team);
}

absl::StatusOr<DataSet> LoadWholeDataSet(const Job& job, uint32_t owners) {
  SoleWorker nobody_else;
  return LoadFor(job, DataSetOptions(), owners, nobody_else);
}

absl::StatusOr<Ranges> FindRanges(const DataSet& data, uint32_t validation_every, Team& team) {
  Ranges ranges;
  const size_t columns = static_cast<size_t>(data.shape.size());
  ranges.minimum.assign(columns, std::numeric_limits<double>::infinity());
  ranges.maximum.assign(columns, -std::numeric_limits<double>::infinity());
  const std::vector<RowId> rows = RowsOf(data.data, validation_every, /*held_out=*/false);
  Matrix<double> features;
  std::vector<double> targets;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtATime) {
    const auto some = absl::MakeConstSpan(rows).subspan(begin, kRowsAtATime);
    SYNCGRADS_RETURN_IF_ERROR(
        FillBatch(data, some, ImageUse(), features, targets, /*damaged=*/nullptr));
    for (Eigen::Index row = 0; row < features.rows(); ++row) {
      for (size_t i = 0; i < columns; ++i) {
        const double value = features(row, static_cast<Eigen::Index>(i));
        ranges.minimum[i] = std::min(ranges.minimum[i], value);
        ranges.maximum[i] = std::max(ranges.maximum[i], value);
      }
    }
  }
  // A worker without rows does not contribute: its infinities are not ranges.
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t contributors,
                             team.AllReduce("data/minimum", absl::MakeSpan(ranges.minimum),
                                            Reduction::kMin, !rows.empty()));
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce("data/maximum", absl::MakeSpan(ranges.maximum), Reduction::kMax, !rows.empty())
          .status());
  if (contributors == 0) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  return ranges;
}

template <typename T>
void PixelScale::Apply(absl::Span<const float> pixels, T* to) const {
  const size_t channels = factor.size();
  for (size_t i = 0; i < pixels.size(); i += channels) {
    for (size_t channel = 0; channel < channels; ++channel) {
      to[i + channel] = static_cast<T>(pixels[i + channel] * factor[channel] + addend[channel]);
    }
  }
}

template <typename T>
absl::Status FillRow(const DataSet& data, const RowId& id, const ImageUse& use, T* to) {
  const Table& table = data.data.shards[id.shard].table;
  if (table.images == nullptr) {
    const absl::Span<const double> row = table.FeaturesOf(id.row);
    if (data.shape.is_image) {
      FillPlanes(data, row, to);
    } else {
      for (size_t i = 0; i < row.size(); ++i) to[i] = static_cast<T>(row[i]);
    }
    return absl::OkStatus();
  }
  std::vector<float> pixels(static_cast<size_t>(data.shape.size()));
  SYNCGRADS_RETURN_IF_ERROR(
      table.images->Read(table.first_image + id.row, use, absl::MakeSpan(pixels)));
  data.scale.Apply(pixels, to);
  return absl::OkStatus();
}

void DamagedImages::Add(absl::string_view message) {
  constexpr size_t kMaxMessages = 20;
  ++count_;
  if (messages_.size() < kMaxMessages) messages_.emplace(message);
}

bool IsDamagedImage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status);
}

namespace {

// Converts packed numbers of type From, of any alignment, to type T.
template <typename From, typename T>
void ReadNumbers(const std::string& bytes, T* to) {
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    From number;
    std::memcpy(&number, &bytes[i * sizeof(From)], sizeof(From));
    to[i] = static_cast<T>(number);
  }
}

}  // namespace

template <typename T>
absl::Status FillServed(const DataSet& data, absl::Span<const RowId> rows, const ServedBatch& batch,
                        Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged) {
  targets.clear();
  for (size_t i = 0; i < batch.left_out.size(); ++i) {
    if (damaged == nullptr) return absl::DataLossError(batch.reasons[i]);
    damaged->Add(batch.reasons[i]);
  }
  const size_t filled = rows.size() - batch.left_out.size();
  features.resize(static_cast<Eigen::Index>(filled), data.shape.size());
  const auto numbers = static_cast<size_t>(features.size());
  if (batch.features.size() == numbers * sizeof(float)) {
    ReadNumbers<float>(batch.features, features.data());
  } else if (batch.features.size() == numbers * sizeof(double)) {
    ReadNumbers<double>(batch.features, features.data());
  } else {
    return absl::DataLossError(absl::StrCat("a batch of ", filled, " rows of ", data.shape.size(),
                                            " numbers was served with ", batch.features.size(),
                                            " bytes"));
  }
  size_t left_out = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (left_out < batch.left_out.size() && batch.left_out[left_out] == i) {
      ++left_out;
      continue;
    }
    const Table& table = data.data.shards[rows[i].shard].table;
    if (table.target_kind != TargetKind::kNone) targets.push_back(table.targets[rows[i].row]);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status FillBatch(const DataSet& data, absl::Span<const RowId> rows, const ImageUse& use,
                       Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged) {
  if (data.served != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t asked, data.served->Ask(rows, use));
    SYNCGRADS_ASSIGN_OR_RETURN(const ServedBatch batch, data.served->Take(asked));
    return FillServed(data, rows, batch, features, targets, damaged);
  }
  features.resize(static_cast<Eigen::Index>(rows.size()), data.shape.size());
  targets.clear();
  Eigen::Index filled = 0;
  for (const RowId& id : rows) {
    const absl::Status status = FillRow(data, id, use, features.data() + filled * features.cols());
    if (!status.ok()) {
      if (damaged == nullptr || !IsDamagedImage(status)) return status;
      damaged->Add(status.message());
      continue;
    }
    ++filled;
    const Table& table = data.data.shards[id.shard].table;
    if (table.target_kind != TargetKind::kNone) targets.push_back(table.targets[id.row]);
  }
  if (filled < features.rows()) features.conservativeResize(filled, features.cols());
  return absl::OkStatus();
}

template void PixelScale::Apply(absl::Span<const float>, float*) const;
template void PixelScale::Apply(absl::Span<const float>, double*) const;
template absl::Status FillRow(const DataSet&, const RowId&, const ImageUse&, float*);
template absl::Status FillRow(const DataSet&, const RowId&, const ImageUse&, double*);
template absl::Status FillBatch(const DataSet&, absl::Span<const RowId>, const ImageUse&,
                                Matrix<float>&, std::vector<double>&, DamagedImages*);
template absl::Status FillBatch(const DataSet&, absl::Span<const RowId>, const ImageUse&,
                                Matrix<double>&, std::vector<double>&, DamagedImages*);

template absl::Status FillServed(const DataSet&, absl::Span<const RowId>, const ServedBatch&,
                                 Matrix<float>&, std::vector<double>&, DamagedImages*);
template absl::Status FillServed(const DataSet&, absl::Span<const RowId>, const ServedBatch&,
                                 Matrix<double>&, std::vector<double>&, DamagedImages*);

}  // namespace syncgrads
