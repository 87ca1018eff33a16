#include "worker/batches/data_set.h"

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

// Sets the scale of images, whose shape is known.
absl::Status SetScale(const v1::ImageSpec& image, DataSet& set) {
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
  return SetScale(image, set);
}

std::shared_ptr<const Storage> StorageOf(const Job& job) {
  return job.storage != nullptr ? job.storage : std::make_shared<FileStorage>(job.directory);
}

}  // namespace

TargetKind TargetKindOf(const v1::LossSpec& loss) {
  const bool custom_numbers = loss.custom().targets() == v1::CustomLossSpec::NUMBERS;
  return loss.has_squared_error() || custom_numbers ? TargetKind::kNumber : TargetKind::kClass;
}

size_t TargetsPerRow(const v1::DataSpec& data) {
  return 1 + static_cast<size_t>(data.more_targets_size());
}

uint32_t ClassCount(const v1::JobFile& job) {
  if (TargetKindOf(job.loss()) == TargetKind::kNumber) return 0;
  if (job.loss().has_sigmoid_cross_entropy()) return 2;
  return job.model().layers(job.model().layers_size() - 1).dense().outputs();
}

namespace {

absl::StatusOr<DataSet> OpenServed(const Job& job, ServedDataRequest request) {
  request.partition = job.file.data().partition();
  request.split = job.file.data().split();
  SYNCGRADS_ASSIGN_OR_RETURN(ServedData opened, job.data_host->Open(request));
  DataSet set;
  set.data = std::move(opened.data);
  set.features = std::move(opened.features);
  set.shape = opened.shape;
  set.served = std::move(opened.rows);
  if (set.shape.is_image) SYNCGRADS_RETURN_IF_ERROR(SetScale(job.file.data().image(), set));
  return set;
}

// How long a worker waits for a batch of a stream, and how many batches are drawn ahead.
constexpr absl::Duration kStreamTimeout = absl::Minutes(5);
constexpr size_t kStreamAhead = 2;

// The rows of a stream of batches, whose table is empty.
absl::StatusOr<DataSet> OpenStreamed(const Job& job, const ServedDataRequest& request) {
  if (request.target_kind == TargetKind::kNone) {
    return absl::InvalidArgumentError(
        "data.custom has stream_features: a stream of batches can only be trained on");
  }
  const v1::CustomSource& custom = job.file.data().custom();
  BatchStreamOptions options;
  options.settings.insert(custom.settings().begin(), custom.settings().end());
  options.features = custom.stream_features();
  options.targets_per_row = TargetsPerRow(job.file.data());
  options.classes = ClassCount(job.file);
  options.batch_size = job.file.batch_size();
  options.rank = request.rank;
  options.world_size = request.world_size;
  options.seed = job.file.seed();
  options.storage = StorageOf(job);
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<BatchStream> stream,
                             job.readers->OpenStream(custom.kind(), options));
  DataSet set;
  set.data.total_shards = request.world_size;
  Shard& shard = set.data.shards.emplace_back();
  shard.number = request.rank;
  shard.table.target_kind = request.target_kind;
  shard.table.targets_per_row = options.targets_per_row;
  for (size_t i = 1; i <= options.features; ++i) {
    shard.table.feature_names.push_back(absl::StrCat("x", i));
  }
  set.features = shard.table.feature_names;
  SYNCGRADS_RETURN_IF_ERROR(SetShape(job.file.data(), set));
  set.stream = std::make_shared<StreamBuffer>(custom.kind(), std::move(stream), options,
                                              kStreamAhead, kStreamTimeout);
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

// `rank` is the worker's, also if `team` is that of a sole worker.
absl::StatusOr<DataSet> LoadFor(const Job& job, const DataSetOptions& options, uint32_t owners,
                                uint32_t rank, Team& team) {
  const TargetKind kind = options.with_targets ? TargetKindOf(job.file.loss()) : TargetKind::kNone;
  // Every worker loads all shards if each trains on all rows.
  if (job.file.data().partition() == v1::DataSpec::ALL) owners = 1;
  SYNCGRADS_ASSIGN_OR_RETURN(DataSet set, LoadRows(job, {rank, team.world_size(), owners, kind}));
  SYNCGRADS_ASSIGN_OR_RETURN(const Contents ours, ContentsOf(set.data));
  SYNCGRADS_ASSIGN_OR_RETURN(const Contents all, Agree(ours, team));
  set.classes = options.classes;
  const auto& names = job.file.data().class_names();
  if (kind != TargetKind::kClass) return set;
  const uint32_t count = ClassCount(job.file);
  if (!set.classes.has_value() && !names.empty()) {
    if (static_cast<uint32_t>(names.size()) > count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.class_names has ", names.size(), " names, but the model has ", count, " classes"));
    }
    set.classes = Classes::Named({names.begin(), names.end()});
  }
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
  if (job.file.data().custom().stream_features() > 0) return OpenStreamed(job, request);
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::DataSpec spec, SpecFor(job, request.owners));
  DataSet set;
  ShardRequest shards = {request.target_kind, request.rank, request.world_size};
  if (request.owners > 0) {
    shards.rank = 0;
    shards.world_size = 1;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(set.data, LoadShards(spec, StorageOf(job), shards, *job.readers));
  SYNCGRADS_ASSIGN_OR_RETURN(Contents contents, ContentsOf(set.data));
  set.features = std::move(contents.features);
  SYNCGRADS_RETURN_IF_ERROR(SetShape(spec, set));
  return set;
}

absl::StatusOr<DataSet> LoadDataSet(const Job& job, const DataSetOptions& options, Team& team) {
  return LoadFor(job, options, options.owners, team.rank(), team);
}

absl::StatusOr<DataSet> LoadWholeDataSet(const Job& job, uint32_t owners, uint32_t rank) {
  SoleWorker nobody_else;
  return LoadFor(job, DataSetOptions(), owners, rank, nobody_else);
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

bool SkipsDamaged(const v1::DataSpec& data) {
  return data.imagenet().damaged() == v1::ImageNetSource::SKIPPED;
}

void DamagedImages::Add(absl::string_view message) {
  constexpr size_t kMaxMessages = 20;
  ++count_;
  if (messages_.size() < kMaxMessages) messages_.emplace(message);
}

template void PixelScale::Apply(absl::Span<const float>, float*) const;
template void PixelScale::Apply(absl::Span<const float>, double*) const;

}  // namespace syncgrads
