#include "third_party/grpc/pollers.h"

#include <grpc/support/cpu.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request{nullptr, 0};  // a message, though it has no bytes
  grpc::ByteBuffer response;
};

// Calls that fail at once; each callback calls `body`, and all have when this returns.
void RunCallbacks(size_t calls, const std::function<void()>& body) {
  grpc::GenericStub stub(grpc::CreateChannel("", nullptr));
  std::mutex mutex;
  std::condition_variable changed;
  size_t done = 0;
  for (size_t i = 0; i < calls; ++i) {
    auto call = std::make_shared<Call>();
    stub.UnaryCall(&call->context, "/", grpc::StubOptions(), &call->request, &call->response,
                   [&, call](const grpc::Status&) {
                     body();
                     std::lock_guard<std::mutex> lock(mutex);
                     ++done;
                     changed.notify_all();
                   });
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done == calls; });
}

TEST(PollersTest, FewRunCallbacksUntilTheOthersAreLetOut) {
  const size_t processors = gpr_cpu_num_cores();
  const size_t all = std::clamp<size_t>(processors / 2, 2, 16);
  // All threads are there before some are parked.
  RunCallbacks(100, [] {});
  ParkPollers(0);

  std::mutex mutex;
  std::condition_variable changed;
  // Those to be parked may be busy yet.
  RunCallbacks(100, [] {});
  std::set<std::thread::id> threads;
  RunCallbacks(1000, [&] {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_LE(threads.size(), std::max<size_t>(1, processors / 4));

  UnparkPollers();
  // Each holds a thread until there is one for all of them.
  size_t inside = 0;
  bool met = true;
  RunCallbacks(all, [&] {
    std::unique_lock<std::mutex> lock(mutex);
    ++inside;
    changed.notify_all();
    met &= changed.wait_for(lock, std::chrono::seconds(30), [&] { return inside == all; });
  });
  EXPECT_TRUE(met);
  UnparkPollers();  // nobody is left to be let out
}

}  // namespace
}  // namespace syncgrads
