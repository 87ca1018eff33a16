#include "server/service/large_messages.h"

#include <utility>

namespace syncgrads::server {

bool LargeMessages::Run(size_t bytes, std::function<void()> handle) {
  if (waiting_.fetch_add(bytes) + bytes > kMaxLargeMessagesBytes) {
    waiting_ -= bytes;
    return false;
  }
  thread_.Run([this, bytes, handle = std::move(handle)] {
    handle();
    waiting_ -= bytes;
  });
  return true;
}

}  // namespace syncgrads::server
