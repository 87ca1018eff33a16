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
  grpc::ByteBuffer request{nullptr, 0};  // an empty message, unlike a null buffer
  grpc::ByteBuffer response;
};

// Returns a channel without a server. It is never destroyed: the destruction of the last channel
// waits for the callback threads, and a callback that still holds it would wait for itself.
const std::shared_ptr<grpc::Channel>& Nowhere() {
  static const auto& channel =
      *new std::shared_ptr<grpc::Channel>(grpc::CreateChannel("", nullptr));
  return channel;
}

// Makes `calls` calls that fail at once. Each callback runs `body`; all have run when this returns.
void RunCallbacks(size_t calls, const std::function<void()>& body) {
  grpc::GenericStub stub(Nowhere());
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

// Returns true if `expected` threads run callbacks at the same time. Each callback blocks its
// thread until there are `expected`.
bool SoManyPoll(size_t expected) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t inside = 0;
  bool met = true;
  RunCallbacks(expected, [&] {
    std::unique_lock<std::mutex> lock(mutex);
    ++inside;
    changed.notify_all();
    met &= changed.wait_for(lock, std::chrono::minutes(2), [&] { return inside == expected; });
  });
  return met;
}

size_t ThreadsOfManyCallbacks() {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  // The threads that are to be parked may still be busy. These calls let them park.
  RunCallbacks(100, [] {});
  RunCallbacks(1000, [&] {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return threads.size();
}

TEST(PollersTest, AsManyPollAsAreAskedFor) {
  // All threads exist before some are parked.
  RunCallbacks(100, [] {});
  EXPECT_TRUE(SoManyPoll(MostPollers()));

  SetPollers(1);
  EXPECT_EQ(ThreadsOfManyCallbacks(), 1u);
  UnparkPollers();  // no effect, because SetPollers was given a count
  EXPECT_EQ(ThreadsOfManyCallbacks(), 1u);
  SetPollers(MostPollers() + 1);
  EXPECT_TRUE(SoManyPoll(MostPollers()));
}

TEST(PollersTest, FewAreNeverMoreThanThereAre) {
  for (uint32_t processors = 1; processors <= 512; ++processors) {
    EXPECT_GE(FewPollers(processors), 1u) << processors;
    EXPECT_LE(FewPollers(processors), MostPollers(processors)) << processors;
  }
  EXPECT_EQ(FewPollers(64), 16u);
  EXPECT_EQ(FewPollers(192), 16u);
}

TEST(PollersTest, FewPollUntilTheOthersAreLetOut) {
  SetPollers(0);
  EXPECT_LE(ThreadsOfManyCallbacks(), FewPollers());
  UnparkPollersForNow();
  EXPECT_TRUE(SoManyPoll(MostPollers()));
  ParkPollers();
  EXPECT_LE(ThreadsOfManyCallbacks(), FewPollers());
  UnparkPollers();
  EXPECT_TRUE(SoManyPoll(MostPollers()));
  UnparkPollers();  // no thread is parked any more
  UnparkPollersForNow();
  ParkPollers();  // not after UnparkPollers
  EXPECT_TRUE(SoManyPoll(MostPollers()));
}

}  // namespace
}  // namespace syncgrads
