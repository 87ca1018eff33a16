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

// A call that fails at once. Only its callback is needed, which runs on a polling thread.
struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request{nullptr, 0};  // a valid message without bytes
  grpc::ByteBuffer response;
};

// Parks polling threads, each in a callback. Thread-safe. Never destroyed: parked threads end with
// the process.
class Park {
 public:
  // Parks or unparks threads until exactly `threads` threads are parked. Does not wait for them.
  void Keep(uint32_t threads) {
    uint32_t missing = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_ = threads;
      while (kept_ < wanted_) {
        ++kept_;
        ++missing;
      }
    }
    changed_.notify_all();
    for (; missing > 0; --missing) {
      auto call = std::make_shared<Call>();
      stub_.UnaryCall(&call->context, "/", grpc::StubOptions(), &call->request, &call->response,
                      [this, call](const grpc::Status&) { Stay(); });
    }
  }

 private:
  void Stay() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return kept_ > wanted_; });
    --kept_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t wanted_ = 0;
  uint32_t kept_ = 0;  // includes calls whose callback has not run yet
  // A channel without credentials: calls on it fail at once, without a socket.
  const std::shared_ptr<grpc::Channel> nowhere_ = grpc::CreateChannel("", nullptr);
  grpc::GenericStub stub_{nowhere_};
};

Park& ThePark() {
  static Park& park = *new Park();
  return park;
}

// Whether threads may be parked: the last count of SetPollers was 0, and UnparkPollers was not
// called since. Written with Changing() locked.
std::atomic<bool> may_park{false};
// Whether UnparkPollersForNow was called since ParkPollers. Written with Changing() locked.
std::atomic<bool> unparked_for_now{false};
std::mutex& Changing() {
  static std::mutex& mutex = *new std::mutex();
  return mutex;
}

}  // namespace

// The number of threads that gRPC 1.51 starts.
uint32_t MostPollers(uint32_t processors) { return std::clamp(processors / 2, 2u, 16u); }

uint32_t FewPollers(uint32_t processors) {
  return std::clamp(processors / 4, 1u, MostPollers(processors));
}

uint32_t MostPollers() { return MostPollers(gpr_cpu_num_cores()); }

uint32_t FewPollers() { return FewPollers(gpr_cpu_num_cores()); }

void SetPollers(uint32_t count) {
  std::lock_guard<std::mutex> lock(Changing());
  const uint32_t polling = count == 0 ? FewPollers() : count;
  ThePark().Keep(MostPollers() - std::min(polling, MostPollers()));
  may_park = count == 0;
  unparked_for_now = false;
}

void UnparkPollers() {
  if (!may_park.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(Changing());
  if (may_park.exchange(false)) ThePark().Keep(0);
}

void UnparkPollersForNow() {
  if (!may_park || unparked_for_now) return;
  std::lock_guard<std::mutex> lock(Changing());
  if (may_park && !unparked_for_now.exchange(true)) ThePark().Keep(0);
}

void ParkPollers() {
  if (!may_park || !unparked_for_now) return;
  std::lock_guard<std::mutex> lock(Changing());
  if (may_park && unparked_for_now.exchange(false)) ThePark().Keep(MostPollers() - FewPollers());
}

}  // namespace syncgrads
