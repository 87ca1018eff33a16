#include "worker/trainer/gradient_engine.h"

#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"
#include "worker/job/across_workers.h"
#include "worker/team/team_exchange.h"

namespace syncgrads {
namespace {

// An upper bound of the number of parts of a batch: step * kMaxParts + part is unique.
constexpr uint64_t kMaxParts = uint64_t{1} << 32;

size_t PartsOf(const v1::JobFile& job, const std::vector<RowId>& rows) {
  return std::min<size_t>(std::max(job.micro_batches(), 1u), rows.size());
}

absl::Span<const RowId> PartOf(const std::vector<RowId>& rows, size_t part, size_t parts) {
  const size_t begin = rows.size() * part / parts;
  const size_t end = rows.size() * (part + 1) / parts;
  return absl::MakeConstSpan(rows).subspan(begin, end - begin);
}

template <typename T>
class ModelGradientEngine final : public GradientEngine {
 public:
  ModelGradientEngine(TrainingRun& run, Model<T>& model, const Loss& loss,
                      std::unique_ptr<BatchReader<T>> reader);
  ~ModelGradientEngine() override;

  absl::StatusOr<double> Compute(const Batch& batch, Hook needed, Hook ready,
                                 WaitHook waits) override;
  absl::Status JoinWithoutRows() override;
  bool joins_batches() const override { return exchange_.has_value(); }
  uint64_t last_batch() const override { return last_batch_; }

 private:
  DeviceMemory& memory() { return model_.device().memory(); }

  // Compute, without handling a lack of memory.
  absl::StatusOr<double> ComputeParts(const Batch& batch, double divisor, Hook needed, Hook ready,
                                      WaitHook waits);
  // Makes the device usable again, drops what was read ahead, and returns the error.
  absl::Status FreeMemory(uint64_t step, absl::Status out_of_memory);
  // Returns the number by which the sum of the losses of `rows` is divided.
  absl::StatusOr<double> DivisorOf(const Batch& batch) const;

  // Reading. Starts to read this batch and the following ones, if the job reads ahead.
  absl::Status ReadAhead(const Batch& batch);
  // Starts to read the parts of the batch of `step`.
  absl::Status BeginParts(uint64_t step, const std::vector<RowId>& rows);
  // Discards the batches of steps before `step` that have been read or are being read.
  void ForgetPartsBefore(uint64_t step);
  // Sets input_ and targets_ to the rows of a part of the batch, which BeginParts has begun.
  absl::Status ReadPart(const Batch& batch, size_t part);
  // Sets input_ and targets_ to a batch of reader_.
  absl::Status Take(uint64_t number);
  // If the first part of the next step's batch has been read, sets input_ and targets_
  // to it, and starts its upload while the device computes this step's last part.
  void ReadPartAhead(uint64_t step);

  // Gradients. Called when the device has queued the gradient of parameter i of one part of the
  // batch: adds it to those of the parts before. After the last part, queues its download.
  absl::Status TakeGradient(size_t i, bool first, bool last, Hook ready);
  // Calls TakeGradient with zeros for all parameters, for a part without rows.
  absl::Status TakeZeros(bool first, bool last, Hook ready);
  // Calls `ready` for the gradients that have been downloaded.
  absl::Status ReportDownloaded(Hook ready);
  // Waits for the first download, and calls `ready` for its gradient.
  absl::Status AwaitDownload(Hook ready);

  TrainingRun& run_;
  Model<T>& model_;
  const Loss& loss_;
  const std::unique_ptr<BatchReader<T>> reader_;
  // Only if the model has layers that use the batches of all workers.
  std::optional<TeamExchange> exchange_;
  uint64_t last_batch_ = 0;
  // The part that ReadPartAhead has read into input_ and targets_: its number in
  // reader_, and the result of reading it.
  struct PartAhead {
    uint64_t number;
    absl::Status status;
  };
  std::optional<PartAhead> part_ahead_;
  // In the reader's memory.
  ModelInput<T> input_ = Pixels<T>();
  std::vector<double> targets_;
  // By parameter: the sum of the gradients of the parts so far.
  std::vector<DeviceArray<T>> accumulated_;
  // Downloads of gradients in flight, with the numbers of their parameters.
  std::deque<std::pair<size_t, DeviceMemory::Download>> downloads_;
};

template <typename T>
ModelGradientEngine<T>::ModelGradientEngine(TrainingRun& run, Model<T>& model, const Loss& loss,
                                            std::unique_ptr<BatchReader<T>> reader)
    : run_(run), model_(model), loss_(loss), reader_(std::move(reader)) {
  if (!LooksAcrossWorkers(run.job.model())) return;
  exchange_.emplace(run.team);
  model_.SetExchange(&*exchange_);
}

template <typename T>
ModelGradientEngine<T>::~ModelGradientEngine() {
  // Before the reader's memory is freed.
  memory().AwaitRead().IgnoreError();
}

template <typename T>
absl::StatusOr<double> ModelGradientEngine<T>::Compute(const Batch& batch, Hook needed, Hook ready,
                                                       WaitHook waits) {
  SYNCGRADS_ASSIGN_OR_RETURN(const double divisor, DivisorOf(batch));
  last_batch_ = batch.step + 1;
  model_.SetTrace(run_.trace(batch.step));
  // Drops the downloads of a batch that was abandoned.
  downloads_.clear();
  SYNCGRADS_RETURN_IF_ERROR(ReadAhead(batch));
  absl::StatusOr<double> loss = absl::UnknownError("not computed");
  try {
    loss = ComputeParts(batch, divisor, needed, ready, waits);
  } catch (const std::bad_alloc&) {
    loss = OutOfMemoryError("not enough memory to compute the gradient");
  }
  if (IsOutOfMemory(loss.status())) return FreeMemory(batch.step, loss.status());
  return loss;
}

template <typename T>
absl::StatusOr<double> ModelGradientEngine<T>::ComputeParts(const Batch& batch, double divisor,
                                                            Hook needed, Hook ready,
                                                            WaitHook waits) {
  const size_t parts = PartsOf(run_.job, batch.rows);
  for (size_t part = 0; part < parts; ++part) {
    SYNCGRADS_RETURN_IF_ERROR(ReadPart(batch, part));
    const bool is_first = part == 0;
    const bool is_last = part + 1 == parts;
    if (targets_.empty()) {
      // None of the part's images could be read.
      for (size_t i = 0; i < model_.parameters().size(); ++i) {
        SYNCGRADS_RETURN_IF_ERROR(needed(i));
      }
      SYNCGRADS_RETURN_IF_ERROR(TakeZeros(is_first, is_last, ready));
      continue;
    }
    if (exchange_.has_value()) {
      exchange_->Begin(run_.job.weight_by_samples() ? static_cast<double>(batch.rows.size()) : 1);
    }
    // The number of the pass differs for each part, and so do its random choices.
    const Pass pass = {/*training=*/true, run_.job.seed(), batch.step * parts + part,
                       run_.team.rank()};
    SYNCGRADS_RETURN_IF_ERROR(model_.ComputeGradients(
        pass, input_, loss_, targets_, divisor, needed,
        [&](size_t i) { return TakeGradient(i, is_first, is_last, ready); }));
  }
  ReadPartAhead(batch.step);
  while (!downloads_.empty()) {
    bool works = true;
    while (works && !memory().HasEnded(downloads_.front().second)) {
      SYNCGRADS_ASSIGN_OR_RETURN(works, waits());
    }
    SYNCGRADS_RETURN_IF_ERROR(AwaitDownload(ready));
  }
  return model_.TakeLoss();
}

template <typename T>
absl::Status ModelGradientEngine<T>::FreeMemory(uint64_t step, absl::Status out_of_memory) {
  // Frees memory: batches that have been read ahead, and the input that has been uploaded
  // ahead.
  ForgetPartsBefore(step + 1);
  model_.ForgetAhead();
  // Results may be written where downloads still write gradients, so wait for these.
  memory().ForgetExhaustion();
  SYNCGRADS_RETURN_IF_ERROR(memory().Finish());
  downloads_.clear();
  SYNCGRADS_RETURN_IF_ERROR(model_.TakeLoss().status());
  return out_of_memory;
}

template <typename T>
absl::StatusOr<double> ModelGradientEngine<T>::DivisorOf(const Batch& batch) const {
  const std::vector<RowId>& rows = batch.rows;
  double weights = 0;
  if (loss_.reduction == Loss::Reduction::kByColumn) {
    for (const RowId& id : rows) weights += run_.data.data.shards[id.shard].table.weights[id.row];
    if (!(weights > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", rows.size(), " rows of step ", batch.step, " have a total weight of ", weights,
          " in column \"", run_.job.data().weight_column(),
          "\", must be positive: the loss is divided by it"));
    }
  }
  return loss_.Divisor(static_cast<int64_t>(rows.size()), run_.data.shape.size(), weights);
}

template <typename T>
absl::Status ModelGradientEngine<T>::ReadAhead(const Batch& batch) {
  // A worker that was late under a quorum has skipped some of the steps that it read
  // ahead.
  ForgetPartsBefore(batch.step);
  SYNCGRADS_RETURN_IF_ERROR(BeginParts(batch.step, batch.rows));
  for (size_t ahead = 1; ahead <= BatchesAhead(run_.job.data()); ++ahead) {
    SYNCGRADS_RETURN_IF_ERROR(BeginParts(batch.step + ahead, batch.rows_ahead(ahead)));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelGradientEngine<T>::BeginParts(uint64_t step, const std::vector<RowId>& rows) {
  const size_t parts = PartsOf(run_.job, rows);
  for (size_t part = 0; part < parts; ++part) {
    const uint64_t number = step * kMaxParts + part;
    if (part_ahead_.has_value() && part_ahead_->number == number) continue;  // it has been read
    SYNCGRADS_RETURN_IF_ERROR(reader_->Begin(number, PartOf(rows, part, parts),
                                             {/*training=*/true, run_.job.seed(), step}));
  }
  return absl::OkStatus();
}

template <typename T>
void ModelGradientEngine<T>::ForgetPartsBefore(uint64_t step) {
  reader_->ForgetBefore(step * kMaxParts);
}

template <typename T>
absl::Status ModelGradientEngine<T>::ReadPart(const Batch& batch, size_t part) {
  const PhaseClock::Scope reads(run_.phases, &StepTimes::read);
  const uint64_t number = batch.step * kMaxParts + part;
  const std::optional<PartAhead> ahead = std::exchange(part_ahead_, std::nullopt);
  if (ahead.has_value()) {
    if (ahead->number == number) return ahead->status;
    model_.ForgetAhead();
  }
  return Take(number);
}

template <typename T>
absl::Status ModelGradientEngine<T>::Take(uint64_t number) {
  // The reader will use the memory of the batch before again.
  SYNCGRADS_RETURN_IF_ERROR(memory().AwaitRead());
  return reader_->Take(number, input_, targets_, run_.skipped_images());
}

template <typename T>
void ModelGradientEngine<T>::ReadPartAhead(uint64_t step) {
  const uint64_t number = (step + 1) * kMaxParts;
  if (memory().is_host() || !memory().status().ok() || !reader_->IsRead(number)) return;
  part_ahead_ = {number, Take(number)};
  if (part_ahead_->status.ok() && !targets_.empty()) model_.BringAhead(input_);
}

template <typename T>
absl::Status ModelGradientEngine<T>::TakeGradient(size_t i, bool first, bool last, Hook ready) {
  // After an exchange has failed, the gradient does not include the other workers'
  // batches: it must not be used.
  if (exchange_.has_value()) SYNCGRADS_RETURN_IF_ERROR(exchange_->status());
  Parameter<T>& parameter = *model_.parameters()[i];
  T* gradient = parameter.device_gradient();
  const int64_t size = parameter.values.size();
  if (!first) {
    model_.device().Accumulate(size, accumulated_[i].data(), gradient);
  }
  if (!last) {
    while (accumulated_.size() < model_.parameters().size()) accumulated_.emplace_back(memory());
    accumulated_[i].Resize(1, size);
    memory().Copy(gradient, parameter.bytes(), accumulated_[i].data());
    return absl::OkStatus();
  }
  model_.Penalise(loss_, i);
  downloads_.emplace_back(i, parameter.QueueGradient());
  return ReportDownloaded(ready);
}

template <typename T>
absl::Status ModelGradientEngine<T>::TakeZeros(bool first, bool last, Hook ready) {
  SYNCGRADS_RETURN_IF_ERROR(JoinWithoutRows());
  for (size_t i = model_.parameters().size(); i-- > 0;) {
    Parameter<T>& parameter = *model_.parameters()[i];
    memory().SetZero(parameter.device_gradient(), parameter.bytes());
    SYNCGRADS_RETURN_IF_ERROR(TakeGradient(i, first, last, ready));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelGradientEngine<T>::ReportDownloaded(Hook ready) {
  while (!downloads_.empty() && memory().HasEnded(downloads_.front().second)) {
    SYNCGRADS_RETURN_IF_ERROR(AwaitDownload(ready));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelGradientEngine<T>::AwaitDownload(Hook ready) {
  const auto [i, download] = downloads_.front();
  SYNCGRADS_RETURN_IF_ERROR(memory().Wait(download));
  SYNCGRADS_RETURN_IF_ERROR(ready(i));
  downloads_.pop_front();
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelGradientEngine<T>::JoinWithoutRows() {
  return exchange_.has_value() ? exchange_->Skip() : absl::OkStatus();
}

}  // namespace

template <typename T>
std::unique_ptr<GradientEngine> MakeGradientEngine(TrainingRun& run, Model<T>& model,
                                                   const Loss& loss,
                                                   std::unique_ptr<BatchReader<T>> reader) {
  return std::make_unique<ModelGradientEngine<T>>(run, model, loss, std::move(reader));
}

template std::unique_ptr<GradientEngine> MakeGradientEngine(TrainingRun&, Model<float>&,
                                                            const Loss&,
                                                            std::unique_ptr<BatchReader<float>>);
template std::unique_ptr<GradientEngine> MakeGradientEngine(TrainingRun&, Model<double>&,
                                                            const Loss&,
                                                            std::unique_ptr<BatchReader<double>>);

}  // namespace syncgrads
