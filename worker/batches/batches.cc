#include "worker/batches/batches.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/data/row_assigner.h"

namespace syncgrads {
namespace {

// Separates the workers' own orders of the rows from other uses of the job's seed.
constexpr uint64_t kOwnOrderStream = 8;

// Data mode SHARDS: each worker uses its own shards, independent of the members.
class ShardBatches : public Batches {
 public:
  // `segment` is that of this run, without steps.
  ShardBatches(Loader loader, const DataSegment& segment, std::vector<DataSegment> history)
      : loader_(std::move(loader)),
        segment_(segment),
        history_(std::move(history)),
        steps_before_(StepsOf(history_)),
        steps_(steps_before_ + loader_.steps()),
        next_({loader_.Next()}) {}

  bool ended() const override { return next_.front().empty(); }
  std::vector<RowId> RowsFor(const StepMembers&) override { return next_.front(); }
  std::vector<RowId> RowsAhead(size_t steps) override {
    while (next_.size() <= steps) next_.push_back(loader_.Next());
    return next_[steps];
  }
  void Advance(const StepOutcome&) override {
    next_.pop_front();
    if (next_.empty()) next_.push_back(loader_.Next());
  }
  uint64_t StepsWith(uint32_t) const override { return steps_; }
  bool depends_on_members() const override { return false; }
  std::vector<NamedTensor> state() override { return {}; }
  void ContinueAfter(uint64_t steps) override {
    // Advances as if this worker had made all the steps.
    for (uint64_t step = steps_before_; step < steps && !ended(); ++step) Advance(StepOutcome());
  }
  std::vector<DataSegment> HistoryAfter(uint64_t steps) const override {
    std::vector<DataSegment> history = history_;
    const bool same = !history.empty() && history.back().workers == segment_.workers &&
                      history.back().batch_size == segment_.batch_size &&
                      history.back().epochs == segment_.epochs;
    if (!same) history.push_back(segment_);
    history.back().steps += steps - steps_before_;
    return history;
  }

 private:
  static uint64_t StepsOf(const std::vector<DataSegment>& history) {
    uint64_t steps = 0;
    for (const DataSegment& segment : history) steps += segment.steps;
    return steps;
  }

  Loader loader_;
  const DataSegment segment_;
  const std::vector<DataSegment> history_;
  const uint64_t steps_before_;
  const uint64_t steps_;
  // The rows of the next step, and of the later steps that RowsAhead has returned.
  std::deque<std::vector<RowId>> next_;
};

// Data mode DYNAMIC: each step assigns the next rows of all to its members.
class DynamicBatches : public Batches {
 public:
  DynamicBatches(const v1::JobFile& job, std::vector<RowId> rows)
      : steps_(job.steps()),
        epochs_(job.epochs()),
        batch_size_(job.batch_size()),
        rows_(std::move(rows)),
        assigner_({.seed = job.seed(),
                   .rows = rows_.size(),
                   .batch_size = job.batch_size(),
                   .order = job.data().order(),
                   .epochs = job.epochs()}) {}

  bool ended() const override { return assigner_.ended() || (steps_ != 0 && done_ >= steps_); }
  std::vector<RowId> RowsFor(const StepMembers& members) override {
    std::vector<RowId> rows;
    for (const size_t row : assigner_.RowsOf(members.rank)) rows.push_back(rows_[row]);
    return rows;
  }
  // The members, and so this worker's rows, are not known before the step.
  std::vector<RowId> RowsAhead(size_t) override { return {}; }
  void Advance(const StepOutcome& outcome) override {
    ++done_;
    assigner_.Advance(static_cast<uint32_t>(outcome.members.size()), outcome.contributors);
  }
  uint64_t StepsWith(uint32_t workers) const override {
    const uint64_t each = uint64_t{workers} * batch_size_;
    return steps_ != 0 ? steps_ : epochs_ * ((rows_.size() + each - 1) / each);
  }
  bool depends_on_members() const override { return true; }
  std::vector<NamedTensor> state() override {
    const auto tensor = [](const char* name, absl::Span<int64_t> values) {
      return NamedTensor{{name, DType::kI64, {static_cast<int64_t>(values.size())}}, values.data()};
    };
    std::vector<NamedTensor> state = {tensor("data/position", assigner_.position())};
    if (!rows_.empty()) state.push_back(tensor("data/order", assigner_.order()));
    return state;
  }
  void ContinueAfter(uint64_t steps) override { done_ = steps; }
  std::vector<DataSegment> HistoryAfter(uint64_t) const override { return {}; }

 private:
  const uint64_t steps_;
  const uint64_t epochs_;
  const uint64_t batch_size_;
  const std::vector<RowId> rows_;
  RowAssigner assigner_;
  uint64_t done_ = 0;
};

// A stream of batches of unknown length.
class StreamBatches : public Batches {
 public:
  StreamBatches(std::shared_ptr<StreamBuffer> buffer, const v1::JobFile& job, uint32_t workers,
                const std::vector<DataSegment>& history)
      : buffer_(std::move(buffer)),
        steps_(job.steps()),
        workers_(workers),
        batch_size_(job.batch_size()) {
    for (const DataSegment& segment : history) done_ += segment.steps;
  }

  // Waits for the next batch. If the wait is stopped, there may be further batches.
  bool ended() const override {
    return done_ >= steps_ || (buffer_->RowsOf(done_) == 0 && buffer_->ended());
  }
  std::vector<RowId> RowsFor(const StepMembers&) override {
    std::vector<RowId> rows;
    const size_t count = done_ >= steps_ ? 0 : buffer_->RowsOf(done_);
    for (size_t row = 0; row < count; ++row) rows.push_back(StreamedRow(done_, row));
    return rows;
  }
  // The buffer draws batches ahead.
  std::vector<RowId> RowsAhead(size_t) override { return {}; }
  void Advance(const StepOutcome&) override { ++done_; }
  uint64_t StepsWith(uint32_t) const override { return steps_; }
  bool depends_on_members() const override { return false; }
  std::vector<NamedTensor> state() override { return {}; }
  void ContinueAfter(uint64_t steps) override { done_ = steps; }
  std::vector<DataSegment> HistoryAfter(uint64_t steps) const override {
    return {{workers_, batch_size_, steps}};
  }

 private:
  const std::shared_ptr<StreamBuffer> buffer_;
  const uint64_t steps_;
  const uint32_t workers_;
  const uint32_t batch_size_;
  // The number of the next batch: those before it are skipped.
  uint64_t done_ = 0;
};

// Returns the positions in `data` of the shards that `rank` of `owners` workers uses.
std::vector<size_t> OwnShards(const WorkerData& data, uint32_t rank, uint32_t owners) {
  std::vector<size_t> own;
  for (const uint32_t number : ShardsOf(data.total_shards, rank, owners)) own.push_back(number);
  return own;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Batches>> MakeBatches(const v1::JobFile& job, const DataSet& data,
                                                     const ShardOwners& owners) {
  if (data.stream != nullptr) {
    return std::make_unique<StreamBatches>(data.stream, job, owners.workers, owners.history);
  }
  const uint32_t validation_every = job.data().validation_every();
  if (job.data().mode() == v1::DataSpec::DYNAMIC) {
    return std::make_unique<DynamicBatches>(
        job, RowsOf(data.data, validation_every, /*held_out=*/false));
  }
  Loader::Options options{.seed = job.seed(),
                          .batch_size = job.batch_size(),
                          .validation_every = validation_every,
                          .order = job.data().order(),
                          .shards = {},
                          .epochs = job.epochs(),
                          .steps = job.steps(),
                          .history = owners.history};
  if (owners.own_order.has_value()) {
    options.all_shards = true;
    options.seed = RandomStream(job.seed(), {kOwnOrderStream, *owners.own_order}).Next();
  }
  if (owners.rank.has_value()) {
    options.shards = OwnShards(data.data, *owners.rank, owners.workers);
    if (options.shards.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", *owners.rank, " of ",
                                                     owners.workers, " has none of the ",
                                                     data.data.total_shards, " shards"));
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(Loader loader, Loader::Create(data.data, options));
  DataSegment segment{owners.workers, job.batch_size()};
  // A worker that joins an elastic job later does not know how the shards were used before: it
  // skips the rows of all steps so far, and so do the others.
  if (!job.has_elastic()) segment.epochs = job.epochs();
  return std::make_unique<ShardBatches>(std::move(loader), segment, owners.history);
}

}  // namespace syncgrads
