// Makes the batches that a data server sends.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/served_data.pb.h"
#include "worker/batches/data_set.h"
#include "worker/batches/own_rows.h"
#include "worker/job/job_file.h"

namespace syncgrads {

// Makes batches of one worker's rows. Must be used from one thread only.
class ServedRowsMaker {
 public:
  // Reads the rows that `request` selects.
  //
  // Errors:
  //   FailedPrecondition  `request` has another job name (names both) or other data than `job`
  //   InvalidArgument     `request` has invalid targets, an invalid dtype, or a rank that is not
  //                       below its world size
  //   others              those of LoadRows
  static absl::StatusOr<std::unique_ptr<ServedRowsMaker>> Open(const Job& job,
                                                               const v1::OpenServedData& request);

  // Returns everything that a worker needs of the rows except the features.
  v1::OpenedServedData Describe() const;

  // Makes a batch. Damaged images are left out and listed in the result, with the reason.
  //
  // Errors:
  //   InvalidArgument  the request is malformed, a row does not exist, or the batch is larger
  //                    than kMostBytes
  //   others           those of OwnRows::Take
  absl::StatusOr<v1::RowsAskedFor> Make(const v1::AskForRows& ask);

  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;

 private:
  ServedRowsMaker(DataSet data, const OwnRowsOptions& options)
      : data_(std::move(data)), source_(data_, options) {}

  const DataSet data_;
  OwnRows source_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_SERVED_ROWS_MAKER_H_
