// What a data server makes of its data.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/served_data.pb.h"
#include "worker/base/thread_pool.h"
#include "worker/job/job_file.h"
#include "worker/train/data_set.h"

namespace syncgrads {

// Of one worker. For one thread.
class ServedRowsMaker {
 public:
  // Reads the rows that `request` is about.
  //
  // Errors:
  //   FailedPrecondition  `request` is of a job with another name (with both), or with
  //                       other data
  //   InvalidArgument     its targets or dtype are none
  //   others              as LoadRows
  static absl::StatusOr<std::unique_ptr<ServedRowsMaker>> Open(const Job& job,
                                                               const v1::OpenServedData& request);

  // All but the features.
  v1::OpenedServedData Describe() const;

  // Errors:
  //   InvalidArgument  a row that there is not; more than kMostBytes
  //   others           as FillRow, unless the job lets damaged images be skipped
  absl::StatusOr<v1::RowsAskedFor> Make(const v1::AskForRows& ask);

  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;

 private:
  ServedRowsMaker(DataSet data, v1::DType dtype, int threads)
      : data_(std::move(data)), dtype_(dtype), pool_(threads) {}

  template <typename T>
  absl::StatusOr<v1::RowsAskedFor> MakeAs(const std::vector<RowId>& rows, const ImageUse& use);

  const DataSet data_;
  const v1::DType dtype_;
  ThreadPool pool_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_
