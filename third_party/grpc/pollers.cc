#include "third_party/grpc/pollers.h"

#include <grpc/support/cpu.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace syncgrads {
namespace {

// A call that fails at once, for its callback.
struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request{nullptr, 0};  // a message, though it has no bytes
  grpc::ByteBuffer response;
};

// Never destroyed: the threads that are in it end with the process.
struct Park {
  bool open = false;
  std::mutex mutex;
  std::condition_variable opened;
  // No channel at all: calls on it fail without a socket.
  const std::shared_ptr<grpc::Channel> nowhere = grpc::CreateChannel("", nullptr);
  grpc::GenericStub stub{nowhere};

  void Stay() {
    std::unique_lock<std::mutex> lock(mutex);
    opened.wait(lock, [this] { return open; });
  }
};

Park& ThePark() {
  static Park& park = *new Park();
  return park;
}

// While it may be opened.
std::atomic<Park*> closed_park{nullptr};

}  // namespace

void ParkPollers(uint32_t left) {
  const uint32_t processors = gpr_cpu_num_cores();
  // As many as gRPC 1.51 starts.
  const uint32_t threads = std::clamp(processors / 2, 2u, 16u);
  const uint32_t first = left > 0 ? left : std::max(1u, processors / 4);
  Park& park = ThePark();
  if (left == 0) closed_park = &park;
  for (uint32_t i = first; i < threads; ++i) {
    auto call = std::make_shared<Call>();
    park.stub.UnaryCall(&call->context, "/", grpc::StubOptions(), &call->request, &call->response,
                        [&park, call](const grpc::Status&) { park.Stay(); });
  }
}

void UnparkPollers() {
  if (closed_park.load(std::memory_order_relaxed) == nullptr) return;
  Park* const park = closed_park.exchange(nullptr);
  if (park == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(park->mutex);
    park->open = true;
  }
  park->opened.notify_all();
}

}  // namespace syncgrads
