// What a layer that looks at a whole batch needs of the other workers' batches.

#ifndef SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_
#define SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace syncgrads {

// Not thread-safe.
class BatchExchange {
 public:
  virtual ~BatchExchange() = default;

  // `values` become the sums of those of all workers that have rows in this step. All call
  // it with the same names in the same order. After an error, which whoever owns the
  // exchange looks for, they are unspecified.
  virtual absl::Status Sum(const std::string& name, absl::Span<double> values) = 0;

  // How much this worker's gradient counts in the average, beside those of others.
  virtual double weight() const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_
