// The all-reduce that lets batch normalisation use the batches of all workers.

#ifndef SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_
#define SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace syncgrads {

// Sums numbers over all workers in the middle of a forward or backward pass. Layers call it on
// the training thread; the trainer implements and owns it. Not thread-safe.
class BatchExchange {
 public:
  virtual ~BatchExchange() = default;

  // Replaces `values` by their sums over all workers that have rows in this step, and waits for
  // those workers. All workers must call it with the same names in the same order. After an
  // error `values` are unspecified; a layer may ignore the error, because the owner of the
  // exchange checks for it.
  virtual absl::Status Sum(const std::string& name, absl::Span<double> values) = 0;

  // The weight of this worker's gradient in the average over all workers.
  virtual double weight() const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_BATCH_EXCHANGE_H_
