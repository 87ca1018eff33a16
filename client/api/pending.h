// A collective operation that is under way.

#ifndef SYNCGRADS_CLIENT_API_PENDING_H_
#define SYNCGRADS_CLIENT_API_PENDING_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads {

class Client;

// A collective operation in progress. Its buffers belong to the library until Wait returns anything
// but DeadlineExceeded. If this object is destroyed before that, they belong to the library until
// Client::Abandon has returned. Moveable.
class Pending {
 public:
  class Operation;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  // True if Wait would return at once.
  bool Ready() const;
  // Waits for the operation and returns the number of members that contributed. The message of
  // DeadlineExceeded names the members that are missing; the wait can then be repeated.
  absl::StatusOr<uint32_t> Wait(absl::Duration timeout);

 private:
  friend class Client;
  explicit Pending(std::unique_ptr<Operation> operation);
  std::unique_ptr<Operation> operation_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_PENDING_H_
