#include "worker/batches/batch_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batches/own_rows.h"
#include "worker/data/stream_buffer.h"

namespace syncgrads {
namespace {

template <typename T>
constexpr v1::DType NumbersDType() {
  return std::is_same_v<T, double> ? v1::F64 : v1::F32;
}

// Converts packed numbers of type From, of any alignment, to type T.
template <typename From, typename T>
void ReadNumbers(const std::string& bytes, T* to) {
  if constexpr (std::is_same_v<From, T>) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
      From number;
      std::memcpy(&number, &bytes[i * sizeof(From)], sizeof(From));
      to[i] = static_cast<T>(number);
    }
  }
}

}  // namespace

template <typename T>
BatchReader<T>::BatchReader(const DataSet& data, std::shared_ptr<RowSource> source)
    : data_(data), source_(std::move(source)) {
  std::vector<float> numbers;
  for (int64_t byte = 0; byte < kPixelValues; ++byte) {
    numbers.push_back(FromByte(static_cast<unsigned char>(byte)));
  }
  for (size_t channel = 0; channel < data.scale.factor.size(); ++channel) {
    const PixelScale scale = {{data.scale.factor[channel]}, {data.scale.addend[channel]}};
    of_bytes_.resize(of_bytes_.size() + kPixelValues);
    scale.Apply(numbers, &of_bytes_[channel * kPixelValues]);
  }
}

template <typename T>
BatchReader<T>::~BatchReader() {
  for (const auto& [batch, begun] : begun_) source_->Forget(begun.asked);
}

template <typename T>
absl::Status BatchReader<T>::Begin(uint64_t batch, absl::Span<const RowId> rows,
                                   const ImageUse& use) {
  if (begun_.contains(batch)) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t asked, source_->Ask(rows, use));
  begun_[batch] = {asked, {rows.begin(), rows.end()}};
  return absl::OkStatus();
}

template <typename T>
absl::Status BatchReader<T>::WrongSize(const RowBatch& batch, int64_t rows) const {
  return absl::DataLossError(absl::StrCat("a batch of ", rows, " rows of ", data_.shape.size(),
                                          batch.has_bytes ? " bytes" : " numbers", " has ",
                                          batch.features.size(), " bytes"));
}

template <typename T>
absl::StatusOr<Pixels<T>> BatchReader<T>::PixelsOf(const RowBatch& batch, int64_t rows) const {
  const Pixels<T> pixels = {
      rows, data_.shape.size(), static_cast<int64_t>(data_.scale.factor.size()),
      reinterpret_cast<const unsigned char*>(batch.features.data()), of_bytes_.data()};
  if (pixels.channels == 0 || batch.features.size() != static_cast<size_t>(pixels.size())) {
    return WrongSize(batch, rows);
  }
  return pixels;
}

template <typename T>
absl::Status BatchReader<T>::Convert(const RowBatch& batch, int64_t rows,
                                     Matrix<T>& features) const {
  features.resize(rows, data_.shape.size());
  const auto numbers = static_cast<size_t>(features.size());
  const std::string& bytes = batch.features;
  if (batch.has_bytes) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Pixels<T> pixels, PixelsOf(batch, rows));
    ConvertPixels(pixels.size(), pixels.channels, pixels.pixels, pixels.numbers, features.data());
  } else if (bytes.size() == numbers * sizeof(float)) {
    ReadNumbers<float>(bytes, features.data());
  } else if (bytes.size() == numbers * sizeof(double)) {
    ReadNumbers<double>(bytes, features.data());
  } else {
    return WrongSize(batch, rows);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status BatchReader<T>::Take(uint64_t batch, Matrix<T>& features, std::vector<double>& targets,
                                  DamagedImages* damaged) {
  int64_t rows = 0;
  SYNCGRADS_ASSIGN_OR_RETURN(RowBatch taken, TakeRows(batch, rows, targets, damaged));
  SYNCGRADS_RETURN_IF_ERROR(Convert(taken, rows, features));
  source_->Reuse(std::move(taken.features));
  return absl::OkStatus();
}

template <typename T>
absl::Status BatchReader<T>::Take(uint64_t batch, ModelInput<T>& input,
                                  std::vector<double>& targets, DamagedImages* damaged) {
  source_->Reuse(std::exchange(taken_.features, std::string()));
  int64_t rows = 0;
  SYNCGRADS_ASSIGN_OR_RETURN(taken_, TakeRows(batch, rows, targets, damaged));
  if (taken_.has_bytes) {
    SYNCGRADS_ASSIGN_OR_RETURN(input, PixelsOf(taken_, rows));
    return absl::OkStatus();
  }
  SYNCGRADS_RETURN_IF_ERROR(Convert(taken_, rows, numbers_));
  source_->Reuse(std::exchange(taken_.features, std::string()));
  input = numbers_;
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<RowBatch> BatchReader<T>::TakeRows(uint64_t batch, int64_t& rows,
                                                  std::vector<double>& targets,
                                                  DamagedImages* damaged) {
  const auto it = begun_.find(batch);
  if (it == begun_.end()) {
    return absl::InternalError(absl::StrCat("batch ", batch, " has not been started"));
  }
  const Begun begun = std::move(it->second);
  begun_.erase(it);
  SYNCGRADS_ASSIGN_OR_RETURN(RowBatch taken, source_->Take(begun.asked));
  if (taken.left_out.size() > begun.rows.size()) {
    return absl::DataLossError(
        absl::StrCat("a batch of ", begun.rows.size(), " rows leaves out ", taken.left_out.size()));
  }
  for (const absl::Status& reason : taken.reasons) {
    if (damaged == nullptr) return reason;
    damaged->Add(reason.message());
  }
  rows = static_cast<int64_t>(begun.rows.size() - taken.left_out.size());
  if (damaged != nullptr) damaged->AddRead(static_cast<uint64_t>(rows));
  if (taken.has_targets) {
    targets = std::move(taken.targets);
    return taken;
  }
  targets.clear();
  size_t left_out = 0;
  for (size_t i = 0; i < begun.rows.size(); ++i) {
    if (left_out < taken.left_out.size() && taken.left_out[left_out] == i) {
      ++left_out;
      continue;
    }
    const Table& table = data_.data.shards[begun.rows[i].shard].table;
    if (table.target_kind == TargetKind::kNone) continue;
    const absl::Span<const double> of_row = table.TargetsOf(begun.rows[i].row);
    targets.insert(targets.end(), of_row.begin(), of_row.end());
  }
  if (left_out == taken.left_out.size()) return taken;
  return absl::DataLossError(absl::StrCat("a batch of ", begun.rows.size(), " rows leaves out row ",
                                          taken.left_out[left_out],
                                          ", which it does not have, or has left out before"));
}

template <typename T>
bool BatchReader<T>::IsRead(uint64_t batch) {
  const auto it = begun_.find(batch);
  return it != begun_.end() && source_->IsRead(it->second.asked);
}

template <typename T>
void BatchReader<T>::ForgetBefore(uint64_t batch) {
  const auto end = begun_.lower_bound(batch);
  for (auto it = begun_.begin(); it != end; it = begun_.erase(it)) {
    source_->Forget(it->second.asked);
  }
}

template <typename T>
std::unique_ptr<BatchReader<T>> MakeReader(const v1::JobFile& job, const v1::DataSpec& source,
                                           const DataSet& data, uint32_t world_size,
                                           const DeviceChoice& device) {
  if (data.served != nullptr) return std::make_unique<BatchReader<T>>(data, data.served);
  if (data.stream != nullptr) {
    return std::make_unique<BatchReader<T>>(data, RowsOfStream(data.stream));
  }
  OwnRowsOptions options;
  options.dtype = NumbersDType<T>();
  const std::shared_ptr<const ImageSource>& images = data.data.shards.front().table.images;
  if (images != nullptr && (images->is_slow() || device.accelerator.has_value())) {
    options.threads = ReadersOf(job, source, world_size, device);
  }
  const uint32_t timeout_s = source.imagenet().timeout_s();
  if (timeout_s != 0) options.timeout = absl::Seconds(timeout_s);
  return std::make_unique<BatchReader<T>>(data, std::make_shared<OwnRows>(data, options));
}

size_t BatchesAhead(const v1::DataSpec& source) {
  constexpr size_t kUsual = 2;
  return source.imagenet().ahead() == 0 ? kUsual : source.imagenet().ahead();
}

template <typename T>
absl::Status ReadRows(const DataSet& data, absl::Span<const RowId> rows, const ImageUse& use,
                      Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged) {
  std::shared_ptr<RowSource> source = data.served;
  if (source == nullptr) {
    source = std::make_shared<OwnRows>(data, OwnRowsOptions{.dtype = NumbersDType<T>()});
  }
  BatchReader<T> reader(data, std::move(source));
  SYNCGRADS_RETURN_IF_ERROR(reader.Begin(0, rows, use));
  return reader.Take(0, features, targets, damaged);
}

template <typename T>
RowsInBatches<T>::RowsInBatches(const v1::JobFile& job, const v1::DataSpec& source,
                                const DataSet& data, uint32_t world_size,
                                const DeviceChoice& device)
    : reader_(MakeReader<T>(job, source, data, world_size, device)),
      ahead_(BatchesAhead(source)),
      batch_size_(std::max(job.batch_size() / std::max(job.micro_batches(), 1u), 1u)) {}

template <typename T>
absl::Status RowsInBatches<T>::ForEach(absl::Span<const RowId> rows, DamagedImages* damaged,
                                       Use use) {
  Matrix<T> features;
  std::vector<double> targets;
  const size_t batches = (rows.size() + batch_size_ - 1) / batch_size_;
  const uint64_t first = next_;
  next_ += batches;
  size_t begun = 0;
  for (size_t batch = 0; batch < batches; ++batch) {
    for (; begun < std::min(batches, batch + 1 + ahead_); ++begun) {
      SYNCGRADS_RETURN_IF_ERROR(reader_->Begin(
          first + begun, rows.subspan(begun * batch_size_, batch_size_), ImageUse()));
    }
    SYNCGRADS_RETURN_IF_ERROR(reader_->Take(first + batch, features, targets, damaged));
    if (features.rows() > 0) SYNCGRADS_RETURN_IF_ERROR(use(features, targets));
  }
  return absl::OkStatus();
}

#define SYNCGRADS_INSTANTIATE(T)                                                               \
  template class BatchReader<T>;                                                               \
  template class RowsInBatches<T>;                                                             \
  template std::unique_ptr<BatchReader<T>> MakeReader(                                         \
      const v1::JobFile&, const v1::DataSpec&, const DataSet&, uint32_t, const DeviceChoice&); \
  template absl::Status ReadRows(const DataSet&, absl::Span<const RowId>, const ImageUse&,     \
                                 Matrix<T>&, std::vector<double>&, DamagedImages*);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
