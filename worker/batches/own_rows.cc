#include "worker/batches/own_rows.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <new>
#include <optional>
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

std::shared_ptr<const ImageSource> ImagesOf(const DataSet& data) {
  return data.data.shards.front().table.images;
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

// Writes a row of a table, as the model's input. `buffer` is for reuse.
template <typename T>
void FillTableRow(const DataSet& data, const RowId& id, std::vector<T>& buffer, char* to) {
  const absl::Span<const double> row = data.data.shards[id.shard].table.FeaturesOf(id.row);
  buffer.resize(row.size());
  if (data.shape.is_image) {
    FillPlanes(data, row, buffer.data());
  } else {
    for (size_t i = 0; i < row.size(); ++i) buffer[i] = static_cast<T>(row[i]);
  }
  std::memcpy(to, buffer.data(), buffer.size() * sizeof(T));
}

}  // namespace

struct OwnRows::Batch {
  std::vector<RowId> rows;
  ImageUse use;
  // Allocated before the first row is read. Each thread writes only its row.
  std::string features;
  // The result of each row; nullopt until the row has been read.
  std::vector<std::optional<absl::Status>> read;
  size_t missing = 0;
};

struct OwnRows::State {
  // One image to read, with everything that a thread needs for it.
  struct Task {
    std::shared_ptr<const ImageSource> images;
    size_t image = 0;
    std::shared_ptr<Batch> batch;
    size_t row = 0;  // in the batch
  };

  State(const DataSet& data, const OwnRowsOptions& options)
      : columns(static_cast<size_t>(data.shape.size())),
        scale(data.scale),
        is_double(options.dtype == v1::F64),
        has_bytes(ImagesOf(data) != nullptr && ImagesOf(data)->has_bytes()),
        row_bytes(columns * (has_bytes   ? 1
                             : is_double ? sizeof(double)
                                         : sizeof(float))) {}

  // The body of a thread.
  void ReadAll();
  // Reads an image. `pixels` is for reuse.
  absl::Status Read(const Task& task, std::vector<float>& pixels);
  // Returns where to write a row. Allocates the batch's memory if it has none.
  char* PlaceOf(Batch& batch, size_t row);

  const size_t columns;
  const PixelScale scale;
  const bool is_double;
  const bool has_bytes;
  const size_t row_bytes;
  Mutex mutex;
  CondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  // The memory of batches that have been taken, for reuse.
  std::vector<std::string> spare ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
  // The number of threads that have not ended.
  size_t running ABSL_GUARDED_BY(mutex) = 0;
};

char* OwnRows::State::PlaceOf(Batch& batch, size_t row) {
  MutexLock lock(mutex);
  const size_t bytes = batch.rows.size() * row_bytes;
  while (batch.features.empty() && !spare.empty()) {
    // Memory of a batch with another number of rows is freed.
    if (spare.back().size() == bytes) batch.features.swap(spare.back());
    spare.pop_back();
  }
  if (batch.features.empty()) batch.features.resize(bytes);
  return &batch.features[row * row_bytes];
}

absl::Status OwnRows::State::Read(const Task& task, std::vector<float>& pixels) {
  try {
    Batch& batch = *task.batch;
    if (has_bytes) {
      auto* to = reinterpret_cast<unsigned char*>(PlaceOf(batch, task.row));
      return task.images->ReadBytes(task.image, batch.use, absl::MakeSpan(to, columns));
    }
    pixels.resize(columns);
    SYNCGRADS_RETURN_IF_ERROR(task.images->Read(task.image, batch.use, absl::MakeSpan(pixels)));
    if (is_double) {
      std::vector<double> row(columns);
      scale.Apply(pixels, row.data());
      std::memcpy(PlaceOf(batch, task.row), row.data(), row_bytes);
    } else {
      scale.Apply(pixels, pixels.data());
      std::memcpy(PlaceOf(batch, task.row), pixels.data(), row_bytes);
    }
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError(
        absl::StrCat("not enough memory to read ", task.images->NameOf(task.image)));
  }
}

void OwnRows::State::ReadAll() {
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

OwnRows::OwnRows(const DataSet& data, const OwnRowsOptions& options)
    : data_(data), options_(options), state_(std::make_shared<State>(data, options)) {
  if (ImagesOf(data) == nullptr) return;
  for (int i = 0; i < options_.threads; ++i) {
    try {
      threads_.emplace_back([state = state_] { state->ReadAll(); });
    } catch (const std::exception&) {
      break;
    }
  }
  MutexLock lock(state_->mutex);
  state_->running = threads_.size();
}

OwnRows::~OwnRows() {
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

size_t OwnRows::row_bytes() const { return state_->row_bytes; }

absl::StatusOr<uint64_t> OwnRows::Ask(absl::Span<const RowId> rows, const ImageUse& use) {
  auto batch = std::make_shared<Batch>();
  batch->rows.assign(rows.begin(), rows.end());
  batch->use = use;
  batch->read.resize(rows.size());
  batch->missing = rows.size();
  if (!threads_.empty()) {
    MutexLock lock(state_->mutex);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Table& table = data_.data.shards[rows[i].shard].table;
      state_->tasks.push_back({table.images, table.ImageOf(rows[i].row), batch, i});
    }
    state_->changed.NotifyAll();
  }
  batches_.emplace(asked_, std::move(batch));
  return asked_++;
}

bool OwnRows::IsRead(uint64_t asked) {
  const auto it = batches_.find(asked);
  if (it == batches_.end() || threads_.empty()) return false;
  MutexLock lock(state_->mutex);
  return it->second->missing == 0;
}

void OwnRows::Forget(uint64_t asked) {
  const auto it = batches_.find(asked);
  if (it == batches_.end()) return;
  MutexLock lock(state_->mutex);
  std::erase_if(state_->tasks, [&](const auto& task) { return task.batch == it->second; });
  batches_.erase(it);
}

void OwnRows::Reuse(std::string features) {
  MutexLock lock(state_->mutex);
  if (!features.empty()) state_->spare.push_back(std::move(features));
}

absl::Status OwnRows::Await(const Batch& batch) {
  MutexLock lock(state_->mutex);
  const absl::Time deadline = MonotonicNow() + options_.timeout;
  while (batch.missing > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
  if (batch.missing == 0) return absl::OkStatus();
  const auto first = std::find(batch.read.begin(), batch.read.end(), std::nullopt);
  const RowId& row = batch.rows[static_cast<size_t>(first - batch.read.begin())];
  const Table& table = data_.data.shards[row.shard].table;
  return absl::DeadlineExceededError(
      absl::StrCat(table.images->NameOf(table.ImageOf(row.row)), " was not read within ",
                   absl::FormatDuration(options_.timeout), ", nor were ", batch.missing - 1,
                   " others of its batch of ", batch.rows.size()));
}

void OwnRows::ReadHere(const std::shared_ptr<Batch>& batch) {
  std::vector<float> pixels;
  std::vector<double> numbers;
  for (size_t i = 0; i < batch->rows.size(); ++i) {
    const RowId& row = batch->rows[i];
    const Table& table = data_.data.shards[row.shard].table;
    if (table.images != nullptr) {
      batch->read[i] = state_->Read({table.images, table.ImageOf(row.row), batch, i}, pixels);
      continue;
    }
    char* to = state_->PlaceOf(*batch, i);
    if (state_->is_double) {
      FillTableRow(data_, row, numbers, to);
    } else {
      FillTableRow(data_, row, pixels, to);
    }
    batch->read[i] = absl::OkStatus();
  }
  batch->missing = 0;
}

absl::StatusOr<RowBatch> OwnRows::Take(uint64_t asked) {
  const auto it = batches_.find(asked);
  if (it == batches_.end()) {
    return absl::InternalError(absl::StrCat("request ", asked, " does not exist"));
  }
  const std::shared_ptr<Batch> taken = std::move(it->second);
  batches_.erase(it);
  if (threads_.empty()) {
    ReadHere(taken);
  } else {
    SYNCGRADS_RETURN_IF_ERROR(Await(*taken));
  }
  RowBatch batch;
  batch.has_bytes = state_->has_bytes;
  batch.features = std::move(taken->features);
  const size_t row_bytes = state_->row_bytes;
  size_t filled = 0;
  for (size_t i = 0; i < taken->rows.size(); ++i) {
    const absl::Status& status = *taken->read[i];
    if (!status.ok()) {
      if (!IsDamagedImage(status)) return status;
      batch.left_out.push_back(static_cast<uint32_t>(i));
      batch.reasons.push_back(status);
      continue;
    }
    if (filled < i) {
      std::memmove(&batch.features[filled * row_bytes], &batch.features[i * row_bytes], row_bytes);
    }
    ++filled;
  }
  batch.features.resize(filled * row_bytes);
  return batch;
}

}  // namespace syncgrads
