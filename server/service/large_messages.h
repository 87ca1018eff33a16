// Handles large messages of the control plane. Parsing a registration of 100,000 tensors takes some
// 10 ms, in which gRPC's thread could not serve the workers of other jobs.

#ifndef SYNCGRADS_SERVER_SERVICE_LARGE_MESSAGES_H_
#define SYNCGRADS_SERVER_SERVICE_LARGE_MESSAGES_H_

#include <atomic>
#include <cstddef>
#include <functional>

#include "common/serial_thread.h"

namespace syncgrads::server {

// From this size on a message is large.
inline constexpr size_t kLargeMessageBytes = size_t{128} << 10;
// Messages of this many bytes in all may wait for the thread.
inline constexpr size_t kMaxLargeMessagesBytes = size_t{64} << 20;

// Thread-safe. The ControlService owns it; its streams use it.
class LargeMessages {
 public:
  // Queues `handle`, which handles a message of `bytes`, for the thread. If there is no room for it
  // beside those that wait, returns false: then the caller handles the message itself, and reads no
  // other one meanwhile.
  bool Run(size_t bytes, std::function<void()> handle);

  // Bytes of the messages that wait for the thread or are being handled there.
  size_t waiting() const { return waiting_; }

 private:
  std::atomic<size_t> waiting_{0};  // bytes
  SerialThread thread_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_LARGE_MESSAGES_H_
