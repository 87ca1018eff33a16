#include "third_party/grpc/pollers.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

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

// How many threads run callbacks at the same time: each holds its thread until there
// are `expected`.
bool SoManyPoll(size_t expected) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t inside = 0;
  bool met = true;
  RunCallbacks(expected, [&] {
    std::unique_lock<std::mutex> lock(mutex);
    ++inside;
    changed.notify_all();
    met &= changed.wait_for(lock, std::chrono::seconds(30), [&] { return inside == expected; });
  });
  return met;
}

size_t ThreadsOfManyCallbacks() {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  // Those to be kept may be busy yet.
  RunCallbacks(100, [] {});
  RunCallbacks(1000, [&] {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return threads.size();
}

TEST(PollersTest, AsManyPollAsAreAskedFor) {
  // All threads are there before some are kept.
  RunCallbacks(100, [] {});
  EXPECT_TRUE(SoManyPoll(MostPollers()));

  SetPollers(1);
  EXPECT_EQ(ThreadsOfManyCallbacks(), 1u);
  UnparkPollers();  // a number was given
  EXPECT_EQ(ThreadsOfManyCallbacks(), 1u);
  SetPollers(MostPollers() + 1);
  EXPECT_TRUE(SoManyPoll(MostPollers()));
}

TEST(PollersTest, FewPollUntilTheOthersAreLetOut) {
  SetPollers(0);
  EXPECT_LE(ThreadsOfManyCallbacks(), FewPollers());
  UnparkPollers();
  EXPECT_TRUE(SoManyPoll(MostPollers()));
  UnparkPollers();  // nobody is left to be let out
}

}  // namespace
}  // namespace syncgrads
