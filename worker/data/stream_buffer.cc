#include "worker/data/stream_buffer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// How long the destructor waits for the thread to end.
constexpr absl::Duration kEndGrace = absl::Seconds(5);
// How often a wait for a batch checks whether it is to stop.
constexpr absl::Duration kStopPoll = absl::Milliseconds(100);
// A batch has fewer rows.
constexpr int kRowBits = 32;

absl::Status Check(const std::string& kind, const StreamedBatch& batch,
                   const BatchStreamOptions& options) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.custom: stream \"", kind, "\" made a batch of ", batch.features.size(),
                     " numbers and ", batch.targets.size(), " targets, but a row has ",
                     options.features, " and ", options.targets_per_row, what));
  };
  const size_t rows = batch.features.size() / options.features;
  if (rows == 0 || rows >> kRowBits != 0 || rows * options.features != batch.features.size() ||
      batch.targets.size() != rows * options.targets_per_row) {
    return wrong("");
  }
  for (const double target : batch.targets) {
    if (options.classes == 0 || (target >= 0 && target < options.classes)) continue;
    return wrong(
        absl::StrCat("; a target is ", target, ", but there are ", options.classes, " classes"));
  }
  return absl::OkStatus();
}

class StreamRows : public RowSource {
 public:
  explicit StreamRows(std::shared_ptr<StreamBuffer> buffer) : buffer_(std::move(buffer)) {}

  absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse&) override {
    asked_[next_].assign(rows.begin(), rows.end());
    return next_++;
  }

  absl::StatusOr<RowBatch> Take(uint64_t asked) override {
    const std::vector<RowId> rows = std::move(asked_[asked]);
    asked_.erase(asked);
    RowBatch taken;
    taken.has_targets = true;
    if (rows.empty()) return taken;
    SYNCGRADS_ASSIGN_OR_RETURN(const StreamedBatch* const batch,
                               buffer_->Get(rows.front().row >> kRowBits));
    const size_t features = buffer_->features(), targets = buffer_->targets_per_row();
    for (const RowId& id : rows) {
      const size_t row = id.row & ((uint64_t{1} << kRowBits) - 1);
      taken.features.append(reinterpret_cast<const char*>(&batch->features[row * features]),
                            features * sizeof(double));
      taken.targets.insert(taken.targets.end(), batch->targets.begin() + row * targets,
                           batch->targets.begin() + (row + 1) * targets);
    }
    return taken;
  }

  bool IsRead(uint64_t) override { return false; }
  void Forget(uint64_t asked) override { asked_.erase(asked); }
  void Reuse(std::string) override {}

 private:
  const std::shared_ptr<StreamBuffer> buffer_;
  uint64_t next_ = 0;
  std::map<uint64_t, std::vector<RowId>> asked_;
};

}  // namespace

struct StreamBuffer::State {
  // The body of the thread.
  void DrawAll();

  std::unique_ptr<BatchStream> stream;
  size_t ahead = 0;
  Mutex mutex;
  CondVar changed;
  // Results of Next. The last one is an error or the end, if the stream has ended.
  std::deque<absl::StatusOr<std::optional<StreamedBatch>>> drawn ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;  // the thread
};

void StreamBuffer::State::DrawAll() {
  while (true) {
    {
      MutexLock lock(mutex);
      while (drawn.size() >= ahead && !ending) changed.WaitUntil(mutex, absl::InfiniteFuture());
      if (ending) break;
    }
    absl::StatusOr<std::optional<StreamedBatch>> next = stream->Next();
    const bool is_last = !next.ok() || !next->has_value();
    MutexLock lock(mutex);
    drawn.push_back(std::move(next));
    changed.NotifyAll();
    if (is_last) break;
  }
  MutexLock lock(mutex);
  ended = true;
  changed.NotifyAll();
}

StreamBuffer::StreamBuffer(std::string kind, std::unique_ptr<BatchStream> stream,
                           const BatchStreamOptions& options, size_t ahead, absl::Duration timeout)
    : kind_(std::move(kind)),
      options_(options),
      timeout_(timeout),
      current_(std::nullopt),
      state_(std::make_shared<State>()) {
  state_->stream = std::move(stream);
  state_->ahead = ahead;
  absl::Status started = StartThread(absl::StrCat("stream \"", kind_, "\""), thread_,
                                     [state = state_] { state->DrawAll(); });
  if (started.ok()) return;
  MutexLock lock(state_->mutex);
  state_->drawn.emplace_back(std::move(started));
  state_->ended = true;
}

StreamBuffer::~StreamBuffer() {
  bool ended = false;
  {
    MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->changed.NotifyAll();
    const absl::Time deadline = MonotonicNow() + kEndGrace;
    while (!state_->ended && state_->changed.WaitUntil(state_->mutex, deadline)) {
    }
    ended = state_->ended;
  }
  if (!thread_.joinable()) return;
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool StreamBuffer::AwaitDrawn() {
  const absl::Time deadline = MonotonicNow() + timeout_;
  while (MonotonicNow() < deadline) {
    {
      MutexLock lock(state_->mutex);
      const absl::Time until = std::min(deadline, MonotonicNow() + kStopPoll);
      while (state_->drawn.empty() && state_->changed.WaitUntil(state_->mutex, until)) {
      }
      if (!state_->drawn.empty()) return true;
    }
    if (should_stop_()) return false;
  }
  return true;
}

size_t StreamBuffer::RowsOf(uint64_t number) {
  while (!has_current_ || number_ < number) {
    const bool over = has_current_ && (!current_.ok() || !current_->has_value());
    if (over) break;
    if (!AwaitDrawn()) return 0;
    MutexLock lock(state_->mutex);
    if (state_->drawn.empty()) {
      current_ = absl::DeadlineExceededError(absl::StrCat("data.custom: stream \"", kind_,
                                                          "\" made no batch within ",
                                                          absl::FormatDuration(timeout_)));
    } else {
      current_ = std::move(state_->drawn.front());
      state_->drawn.pop_front();
      state_->changed.NotifyAll();
    }
    if (has_current_) ++number_;
    has_current_ = true;
    if (current_.ok() && current_->has_value()) {
      const absl::Status valid = Check(kind_, **current_, options_);
      if (!valid.ok()) current_ = valid;
    }
  }
  if (!current_.ok()) return 1;
  return current_->has_value() ? (*current_)->features.size() / options_.features : 0;
}

absl::StatusOr<const StreamedBatch*> StreamBuffer::Get(uint64_t number) {
  if (!current_.ok()) return current_.status();
  if (!has_current_ || number != number_ || !current_->has_value()) {
    return absl::InternalError(absl::StrCat("batch ", number, " of stream \"", kind_,
                                            "\" is requested, but the current one is ", number_));
  }
  return &**current_;
}

RowId StreamedRow(uint64_t batch, size_t row) { return {0, batch << kRowBits | row}; }

std::shared_ptr<RowSource> RowsOfStream(std::shared_ptr<StreamBuffer> buffer) {
  return std::make_shared<StreamRows>(std::move(buffer));
}

}  // namespace syncgrads
