// Out of memory, as an exception that has a message, and as a status, which can be passed from one
// thread to another.

#ifndef SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_
#define SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_

#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Thrown where memory of a known size cannot be allocated; what() contains the size.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message)
      : message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  // Shared, because copies of an exception must not throw.
  std::shared_ptr<const std::string> message_;
};

inline constexpr absl::string_view kOutOfMemoryUrl = "syncgrads/out_of_memory";

// Returns a ResourceExhausted that IsOutOfMemory distinguishes from others.
inline absl::Status OutOfMemoryError(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kOutOfMemoryUrl, absl::Cord());
  return status;
}

inline bool IsOutOfMemory(const absl::Status& status) {
  return status.GetPayload(kOutOfMemoryUrl).has_value();
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_OUT_OF_MEMORY_H_
