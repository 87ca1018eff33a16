// What a Pending holds.

#ifndef SYNCGRADS_CLIENT_OPERATION_H_
#define SYNCGRADS_CLIENT_OPERATION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace syncgrads {

// See Pending. Destroyed while it is under way, it goes on.
class Pending::Operation {
 public:
  virtual ~Operation() = default;
  virtual bool Ready() const = 0;
  virtual absl::StatusOr<uint32_t> Wait(absl::Duration timeout) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_OPERATION_H_
