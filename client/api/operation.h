// The interface of the operation that a Pending holds.

#ifndef SYNCGRADS_CLIENT_API_OPERATION_H_
#define SYNCGRADS_CLIENT_API_OPERATION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/api/pending.h"

namespace syncgrads {

// The operation behind a Pending, whose methods call these. If this object is destroyed while the
// operation is in progress, the operation continues.
class Pending::Operation {
 public:
  virtual ~Operation() = default;
  virtual bool Ready() const = 0;
  virtual absl::StatusOr<uint32_t> Wait(absl::Duration timeout) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_OPERATION_H_
