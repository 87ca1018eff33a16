// Draws the batches of a stream ahead.

#ifndef SYNCGRADS_WORKER_DATA_STREAM_BUFFER_H_
#define SYNCGRADS_WORKER_DATA_STREAM_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/data/readers/batch_stream.h"
#include "worker/data/row_source.h"

namespace syncgrads {

// The next batches of a stream, which a thread draws ahead. The batches are numbered from 0.
//
// Must be used from one thread only.
class StreamBuffer {
 public:
  // `kind` is the stream's name in errors. At most `ahead` batches are drawn before they are
  // needed. `timeout` limits each wait for a batch.
  StreamBuffer(std::string kind, std::unique_ptr<BatchStream> stream,
               const BatchStreamOptions& options, size_t ahead, absl::Duration timeout);
  // Waits for the thread to end. If the stream hangs for more than 5 s, the thread is detached.
  ~StreamBuffer();

  // From now on, RowsOf stops waiting when `should_stop`, which it calls several times a second,
  // returns true.
  void StopWaitingIf(std::function<bool()> should_stop) { should_stop_ = std::move(should_stop); }

  // Waits for batch `number`, and returns its number of rows: 0 if the stream has ended before, or
  // if the wait was stopped; 1 if the batch could not be drawn. `number` must not be less than that
  // of an earlier call.
  size_t RowsOf(uint64_t number);
  // Whether the last batch given to RowsOf is behind the end of the stream.
  bool ended() const { return has_current_ && current_.ok() && !current_->has_value(); }

  // Returns batch `number`, the last one given to RowsOf.
  //
  // Errors:
  //   DeadlineExceeded  the batch was not drawn in time; names the stream
  //   InvalidArgument   the batch is malformed; names the stream and the numbers
  //   others            those of the stream
  absl::StatusOr<const StreamedBatch*> Get(uint64_t number);

  size_t targets_per_row() const { return options_.targets_per_row; }
  size_t features() const { return options_.features; }

 private:
  struct State;

  // Waits until the thread has drawn a batch, or until the timeout. Returns false if the wait was
  // stopped.
  bool AwaitDrawn();

  const std::string kind_;
  const BatchStreamOptions options_;
  const absl::Duration timeout_;
  std::function<bool()> should_stop_ = [] { return false; };
  // The last batch that has been waited for, and its number.
  uint64_t number_ = 0;
  absl::StatusOr<std::optional<StreamedBatch>> current_;
  bool has_current_ = false;
  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

// The RowId of row `row` of batch `batch`.
RowId StreamedRow(uint64_t batch, size_t row);

// The rows of a buffer's current batch. Rows that are requested have been made by StreamedRow.
std::shared_ptr<RowSource> RowsOfStream(std::shared_ptr<StreamBuffer> buffer);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_STREAM_BUFFER_H_
