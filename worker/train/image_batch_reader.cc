#include "worker/train/image_batch_reader.h"

#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads {
namespace {

// How long the destructor waits for the threads to end.
constexpr absl::Duration kEndGrace = absl::Seconds(5);

}  // namespace

template <typename T>
struct ImageBatchReader<T>::Batch {
  std::vector<RowId> rows;
  // Allocated by the first thread that has read one of the images. Each thread writes
  // only the row of its image.
  Matrix<T> features;
  // The result of each row; nullopt until the image has been read.
  std::vector<std::optional<absl::Status>> read;
  size_t missing = 0;
};

template <typename T>
struct ImageBatchReader<T>::State {
  // One image to read, with everything that a thread needs for it.
  struct Task {
    std::shared_ptr<const ImageSource> images;
    size_t image = 0;
    ImageUse use;
    std::shared_ptr<Batch> batch;
    size_t row = 0;  // in the batch
  };

  explicit State(const DataSet& data) : columns(data.shape.size()), scale(data.scale) {}

  // The body of a reader thread.
  void ReadAll();
  absl::Status Read(const Task& task, std::vector<float>& pixels);
  // Returns where to write the task's row. Allocates the batch's memory if it has none.
  T* PlaceOf(const Task& task);

  const int64_t columns;
  const PixelScale scale;
  Mutex mutex;
  CondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, std::shared_ptr<Batch>> batches ABSL_GUARDED_BY(mutex);
  // The memory of batches that have been taken, for reuse.
  std::vector<Matrix<T>> spare ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
  // The number of threads that have not ended.
  size_t running ABSL_GUARDED_BY(mutex) = 0;
};

template <typename T>
T* ImageBatchReader<T>::State::PlaceOf(const Task& task) {
  MutexLock lock(mutex);
  Matrix<T>& features = task.batch->features;
  const auto rows = static_cast<Eigen::Index>(task.batch->rows.size());
  while (features.size() == 0 && !spare.empty()) {
    // A matrix with another number of rows cannot be reused; it is freed.
    if (spare.back().rows() == rows) features.swap(spare.back());
    spare.pop_back();
  }
  if (features.size() == 0) features.resize(rows, columns);
  return features.data() + static_cast<Eigen::Index>(task.row) * columns;
}

template <typename T>
absl::Status ImageBatchReader<T>::State::Read(const Task& task, std::vector<float>& pixels) {
  try {
    pixels.resize(static_cast<size_t>(columns));
    SYNCGRADS_RETURN_IF_ERROR(task.images->Read(task.image, task.use, absl::MakeSpan(pixels)));
    scale.Apply(pixels, PlaceOf(task));
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError(
        absl::StrCat("not enough memory to read ", task.images->NameOf(task.image)));
  }
}

template <typename T>
void ImageBatchReader<T>::State::ReadAll() {
  std::vector<float> pixels;
  while (true) {
    Task task;
    {
      MutexLock lock(mutex);
      while (tasks.empty() && !ending) changed.WaitUntil(mutex, absl::InfiniteFuture());
      if (ending) {
        --running;
        changed.NotifyAll();
        return;
      }
      task = std::move(tasks.front());
      tasks.pop_front();
    }
    absl::Status status = Read(task, pixels);
    MutexLock lock(mutex);
    task.batch->read[task.row] = std::move(status);
    if (--task.batch->missing == 0) changed.NotifyAll();
  }
}

template <typename T>
ImageBatchReader<T>::ImageBatchReader(const DataSet& data, const ImageBatchReaderOptions& options)
    : data_(data), options_(options), state_(std::make_shared<State>(data)) {
  {
    MutexLock lock(state_->mutex);
    state_->running = static_cast<size_t>(options_.threads);
  }
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([state = state_] { state->ReadAll(); });
  }
}

template <typename T>
ImageBatchReader<T>::~ImageBatchReader() {
  bool all_ended = false;
  {
    MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->changed.NotifyAll();
    const absl::Time deadline = MonotonicNow() + kEndGrace;
    while (state_->running > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
    }
    all_ended = state_->running == 0;
  }
  for (std::thread& thread : threads_) {
    if (all_ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

template <typename T>
absl::Status ImageBatchReader<T>::Begin(uint64_t batch, const std::vector<RowId>& rows,
                                        const ImageUse& use) {
  MutexLock lock(state_->mutex);
  std::shared_ptr<Batch>& begun = state_->batches[batch];
  if (begun != nullptr) return absl::OkStatus();
  begun = std::make_shared<Batch>();
  begun->rows = rows;
  begun->read.resize(rows.size());
  begun->missing = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Table& table = data_.data.shards[rows[i].shard].table;
    state_->tasks.push_back({table.images, table.first_image + rows[i].row, use, begun, i});
  }
  state_->changed.NotifyAll();
  return absl::OkStatus();
}

template <typename T>
bool ImageBatchReader<T>::IsRead(uint64_t batch) {
  MutexLock lock(state_->mutex);
  const auto it = state_->batches.find(batch);
  return it != state_->batches.end() && it->second->missing == 0;
}

template <typename T>
void ImageBatchReader<T>::ForgetBefore(uint64_t batch) {
  MutexLock lock(state_->mutex);
  const auto end = state_->batches.lower_bound(batch);
  for (auto it = state_->batches.begin(); it != end; it = state_->batches.erase(it)) {
    std::erase_if(state_->tasks, [&](const auto& task) { return task.batch == it->second; });
  }
}

template <typename T>
absl::StatusOr<std::shared_ptr<typename ImageBatchReader<T>::Batch>> ImageBatchReader<T>::Await(
    uint64_t batch) {
  MutexLock lock(state_->mutex);
  const auto it = state_->batches.find(batch);
  if (it == state_->batches.end()) {
    return absl::InternalError(absl::StrCat("batch ", batch, " has not been started"));
  }
  const std::shared_ptr<Batch> taken = std::move(it->second);
  state_->batches.erase(it);
  const absl::Time deadline = MonotonicNow() + options_.timeout;
  while (taken->missing > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
  if (taken->missing == 0) return taken;
  const auto first = std::find(taken->read.begin(), taken->read.end(), std::nullopt);
  const RowId& row = taken->rows[static_cast<size_t>(first - taken->read.begin())];
  const Table& table = data_.data.shards[row.shard].table;
  return absl::DeadlineExceededError(
      absl::StrCat(table.images->NameOf(table.first_image + row.row), " was not read within ",
                   absl::FormatDuration(options_.timeout), ", nor were ", taken->missing - 1,
                   " others of its batch of ", taken->rows.size()));
}

template <typename T>
absl::Status ImageBatchReader<T>::Take(uint64_t batch, Matrix<T>& features,
                                       std::vector<double>& targets, DamagedImages* damaged) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::shared_ptr<Batch> taken, Await(batch));
  features.swap(taken->features);
  {
    MutexLock lock(state_->mutex);
    if (taken->features.size() > 0) state_->spare.push_back(std::move(taken->features));
  }
  targets.clear();
  Eigen::Index filled = 0;
  for (size_t i = 0; i < taken->rows.size(); ++i) {
    const absl::Status& status = *taken->read[i];
    if (!status.ok()) {
      if (damaged == nullptr || !IsDamagedImage(status)) return status;
      damaged->Add(status.message());
      continue;
    }
    const auto row = static_cast<Eigen::Index>(i);
    if (filled < row) features.row(filled) = features.row(row);
    ++filled;
    const Table& table = data_.data.shards[taken->rows[i].shard].table;
    if (table.target_kind != TargetKind::kNone)
      targets.push_back(table.targets[taken->rows[i].row]);
  }
  // Leaves no rows if no image could be read.
  if (filled < static_cast<Eigen::Index>(taken->rows.size())) {
    features.conservativeResize(filled, data_.shape.size());
  }
  return absl::OkStatus();
}

template class ImageBatchReader<float>;
template class ImageBatchReader<double>;

}  // namespace syncgrads
