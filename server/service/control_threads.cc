#include "server/service/control_threads.h"

#include <utility>

namespace syncgrads::server {

void ControlThreads::Handle(MessageWeight weight, std::function<void()> handle) {
  Kind& kind = Of(weight);
  ++kind.waiting;
  kind.thread.Run([&kind, handle = std::move(handle)] {
    handle();
    --kind.waiting;
  });
}

void ControlThreads::End(std::function<void()> end) {
  Of(MessageWeight::kLight).thread.Run(std::move(end));
}

}  // namespace syncgrads::server
