#include "server/core/plan/relay.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

TEST(RelayTest, TellsTheNewestSink) {
  Relay<int> relay;
  relay.Send(1);  // without a sink, the value is dropped
  std::vector<int> first, second;
  relay.SetSink([&first](int report) { first.push_back(report); });
  relay.Send(2);
  relay.SetSink([&second](int report) { second.push_back(report); });
  relay.Send(3);
  relay.SetSink(nullptr);
  relay.Send(4);
  EXPECT_EQ(first, std::vector<int>{2});
  EXPECT_EQ(second, std::vector<int>{3});
}

// Objects that a sink uses are destroyed after it was replaced.
TEST(RelayTest, ASinkThatWasReplacedIsNotRunning) {
  Relay<int> relay;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) relay.Send(1);
    });
  }
  for (int life = 0; life < 300; ++life) {
    auto used = std::make_unique<std::atomic<int>>(0);
    relay.SetSink([used = used.get()](int report) {
      *used += report;
      std::this_thread::yield();
      *used -= report;
    });
    while (life % 2 == 0 && *used == 0) std::this_thread::yield();
    relay.SetSink(nullptr);
    EXPECT_EQ(*used, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncgrads::server
