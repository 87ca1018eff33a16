#include "server/service/calls/control_threads.h"

#include <utility>

namespace syncgrads::server {

void ControlThreads::Kind::Run(const std::string& owner, std::function<void()> closure) {
  {
    MutexLock lock(mutex_);
    queue_.Push(owner, std::move(closure));
  }
  thread_.Run([this] {
    std::function<void()> next;
    {
      MutexLock lock(mutex_);
      next = queue_.Pop();
    }
    next();
  });
}

void ControlThreads::Handle(MessageWeight weight, const std::string& owner,
                            std::function<void()> handle) {
  Kind& kind = Of(weight);
  ++kind.waiting;
  kind.Run(owner, [&kind, handle = std::move(handle)] {
    handle();
    --kind.waiting;
  });
}

void ControlThreads::End(const std::string& owner, std::function<void()> end) {
  Of(MessageWeight::kLight).Run(owner, std::move(end));
}

}  // namespace syncgrads::server
