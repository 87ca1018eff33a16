#include "server/service/control_threads.h"

#include <utility>

namespace syncgrads::server {

bool ControlThreads::Handle(size_t bytes, std::function<void()> handle) {
  if (waiting_.fetch_add(bytes) + bytes > kMaxWaitingControlBytes) {
    waiting_ -= bytes;
    return false;
  }
  SerialThread& thread = bytes < kLargeMessageBytes ? small_ : large_;
  thread.Run([this, bytes, handle = std::move(handle)] {
    handle();
    waiting_ -= bytes;
  });
  return true;
}

void ControlThreads::End(std::function<void()> end) { small_.Run(std::move(end)); }

}  // namespace syncgrads::server
