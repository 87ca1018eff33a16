#include "worker/train/image_batch_reader.h"

#include <deque>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "worker/base/out_of_memory.h"

namespace syncgrads {
namespace {

// An image to be read, with all that a thread needs for it.
struct Task {
  std::shared_ptr<const ImageSource> images;
  size_t image = 0;
  ImageUse use;
  uint64_t batch = 0;
  size_t position = 0;  // in the batch
};

struct Image {
  std::vector<float> pixels;
  absl::Status status;
  bool is_read = false;
};

struct Batch {
  std::vector<RowId> rows;
  std::vector<Image> images;
  size_t missing = 0;
};

// For the threads to end, when no image hangs.
constexpr absl::Duration kEndGrace = absl::Seconds(5);

}  // namespace

struct ImageBatchReader::State {
  Mutex mutex;
  CondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, Batch> batches ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
  size_t running ABSL_GUARDED_BY(mutex) = 0;  // threads

  // What a thread does.
  void ReadAll();
};

void ImageBatchReader::State::ReadAll() {
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
    Image image;
    try {
      image.pixels.resize(static_cast<size_t>(task.images->shape().size()));
      image.status = task.images->Read(task.image, task.use, absl::MakeSpan(image.pixels));
    } catch (const std::bad_alloc&) {
      image.status = OutOfMemoryError(absl::StrCat("to read ", task.images->NameOf(task.image)));
    }
    image.is_read = true;
    MutexLock lock(mutex);
    const auto it = batches.find(task.batch);
    if (it == batches.end()) continue;  // given up
    it->second.images[task.position] = std::move(image);
    if (--it->second.missing == 0) changed.NotifyAll();
  }
}

ImageBatchReader::ImageBatchReader(const DataSet& data, const Options& options)
    : data_(data), options_(options), state_(std::make_shared<State>()) {
  {
    MutexLock lock(state_->mutex);
    state_->running = static_cast<size_t>(options_.threads);
  }
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([state = state_] { state->ReadAll(); });
  }
}

ImageBatchReader::~ImageBatchReader() {
  bool all_ended = false;
  {
    MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->changed.NotifyAll();
    const absl::Time deadline = absl::Now() + kEndGrace;
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

absl::Status ImageBatchReader::Begin(uint64_t batch, const std::vector<RowId>& rows,
                                     const ImageUse& use) {
  MutexLock lock(state_->mutex);
  const auto [it, is_new] = state_->batches.try_emplace(batch);
  if (!is_new) return absl::OkStatus();
  it->second.rows = rows;
  it->second.images.resize(rows.size());
  it->second.missing = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Table& table = data_.data.shards[rows[i].shard].table;
    state_->tasks.push_back({table.images, table.first_image + rows[i].row, use, batch, i});
  }
  state_->changed.NotifyAll();
  return absl::OkStatus();
}

void ImageBatchReader::Forget(uint64_t batch) {
  MutexLock lock(state_->mutex);
  state_->batches.erase(batch);
}

template <typename T>
absl::Status ImageBatchReader::TakeAs(uint64_t batch, Matrix<T>& features,
                                      std::vector<double>& targets, DamagedImages* damaged) {
  Batch taken;
  {
    MutexLock lock(state_->mutex);
    const auto it = state_->batches.find(batch);
    if (it == state_->batches.end()) {
      return absl::InternalError(absl::StrCat("batch ", batch, " has not been begun"));
    }
    const absl::Time deadline = absl::Now() + options_.timeout;
    while (it->second.missing > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
    }
    taken = std::move(it->second);
    state_->batches.erase(it);
  }
  for (size_t i = 0; taken.missing > 0 && i < taken.rows.size(); ++i) {
    if (taken.images[i].is_read) continue;
    const Table& table = data_.data.shards[taken.rows[i].shard].table;
    return absl::DeadlineExceededError(
        absl::StrCat(table.images->NameOf(table.first_image + taken.rows[i].row),
                     " was not read within ", absl::FormatDuration(options_.timeout), ", like ",
                     taken.missing - 1, " others of its batch of ", taken.rows.size()));
  }
  features.resize(static_cast<Eigen::Index>(taken.rows.size()), data_.shape.size());
  targets.clear();
  Eigen::Index filled = 0;
  for (size_t i = 0; i < taken.rows.size(); ++i) {
    const Image& image = taken.images[i];
    if (!image.status.ok()) {
      if (damaged == nullptr || !IsDamagedImage(image.status)) return image.status;
      damaged->Add(image.status.message());
      continue;
    }
    ScalePixels(data_, image.pixels, features.data() + filled * features.cols());
    ++filled;
    const Table& table = data_.data.shards[taken.rows[i].shard].table;
    if (table.target_kind != TargetKind::kNone) targets.push_back(table.targets[taken.rows[i].row]);
  }
  if (filled < features.rows()) features.conservativeResize(filled, features.cols());
  return absl::OkStatus();
}

absl::Status ImageBatchReader::Take(uint64_t batch, Matrix<float>& features,
                                    std::vector<double>& targets, DamagedImages* damaged) {
  return TakeAs(batch, features, targets, damaged);
}

absl::Status ImageBatchReader::Take(uint64_t batch, Matrix<double>& features,
                                    std::vector<double>& targets, DamagedImages* damaged) {
  return TakeAs(batch, features, targets, damaged);
}

}  // namespace syncgrads
