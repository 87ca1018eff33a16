#include "worker/checkpoint/checkpoint_writer.h"

#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// How long the destructor waits for the checkpoint that is being written.
constexpr absl::Duration kLastWait = absl::Seconds(30);

}  // namespace

struct CheckpointWriter::State {
  explicit State(CheckpointDirectory::Options options) : directory(std::move(options)) {}

  struct Work {
    Snapshot snapshot;
    std::function<absl::Status(Snapshot&)> complete;
  };

  CheckpointDirectory directory;  // used by the background thread only

  mutable Mutex mutex;
  CondVar changed;
  std::optional<Work> next ABSL_GUARDED_BY(mutex);
  std::optional<uint64_t> step_under_way ABSL_GUARDED_BY(mutex);
  std::vector<CheckpointOutcome> outcomes ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

CheckpointWriter::CheckpointWriter(CheckpointDirectory::Options options)
    : path_(options.path), state_(std::make_shared<State>(std::move(options))) {}

CheckpointWriter::~CheckpointWriter() {
  if (!thread_.joinable()) return;
  const bool finished = Finish(kLastWait).ok();
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.NotifyAll();
  }
  if (finished) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool CheckpointWriter::busy() const {
  MutexLock lock(state_->mutex);
  return state_->step_under_way.has_value();
}

absl::Status CheckpointWriter::Begin(Snapshot snapshot,
                                     std::function<absl::Status(Snapshot&)> complete) {
  if (!thread_.joinable()) {
    SYNCGRADS_RETURN_IF_ERROR(
        StartThread("checkpoints", thread_, [state = state_] { Run(state); }));
  }
  MutexLock lock(state_->mutex);
  if (state_->step_under_way.has_value()) {
    return absl::UnavailableError(absl::StrCat("the checkpoint of step ", *state_->step_under_way,
                                               " is still being written to ", path_));
  }
  state_->step_under_way = snapshot.manifest.step;
  state_->next = State::Work{std::move(snapshot), std::move(complete)};
  state_->changed.NotifyAll();
  return absl::OkStatus();
}

void CheckpointWriter::Run(const std::shared_ptr<State>& state) {
  while (true) {
    std::optional<State::Work> work;
    {
      MutexLock lock(state->mutex);
      while (!state->next.has_value() && !state->stopping) {
        state->changed.WaitUntil(state->mutex, absl::InfiniteFuture());
      }
      if (!state->next.has_value()) return;
      work = std::exchange(state->next, std::nullopt);
    }
    CheckpointOutcome outcome{work->snapshot.manifest.step, absl::UnknownError("")};
    try {
      const absl::Status completed =
          work->complete ? work->complete(work->snapshot) : absl::OkStatus();
      outcome.path = completed.ok() ? WriteSnapshot(work->snapshot, state->directory)
                                    : absl::StatusOr<std::string>(completed);
    } catch (const std::bad_alloc&) {
      outcome.path = absl::ResourceExhaustedError("not enough memory to write it");
    }
    // Frees the snapshot before Begin can accept the next one: only one is in memory.
    work.reset();
    MutexLock lock(state->mutex);
    state->outcomes.push_back(std::move(outcome));
    state->step_under_way.reset();
    state->changed.NotifyAll();
  }
}

std::vector<CheckpointOutcome> CheckpointWriter::TakeOutcomes() {
  MutexLock lock(state_->mutex);
  return std::exchange(state_->outcomes, {});
}

absl::Status CheckpointWriter::Finish(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(state_->mutex);
  while (state_->step_under_way.has_value()) {
    if (state_->changed.WaitUntil(state_->mutex, deadline)) continue;
    if (!state_->step_under_way.has_value()) break;
    return absl::DeadlineExceededError(absl::StrCat(
        "the checkpoint of step ", *state_->step_under_way, " is still being written to ", path_,
        " after ", absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
