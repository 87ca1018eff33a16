#include "server/service/control_threads.h"

#include <utility>

namespace syncgrads::server {

void ControlThreads::Handle(MessageWeight weight, std::function<void()> handle) {
  ++waiting_;
  SerialThread& thread = weight == MessageWeight::kLight          ? light_
                         : weight == MessageWeight::kRegistration ? registrations_
                                                                  : large_;
  thread.Run([this, handle = std::move(handle)] {
    handle();
    --waiting_;
  });
}

void ControlThreads::End(std::function<void()> end) { light_.Run(std::move(end)); }

}  // namespace syncgrads::server
