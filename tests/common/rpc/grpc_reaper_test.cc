#include "common/rpc/grpc_reaper.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

// Records the thread on which it is destroyed.
class Mortal {
 public:
  explicit Mortal(std::thread::id& died_on, std::atomic<int>* deaths = nullptr)
      : died_on_(died_on), deaths_(deaths) {}
  ~Mortal() {
    died_on_ = std::this_thread::get_id();
    if (deaths_ != nullptr) ++*deaths_;
  }

 private:
  std::thread::id& died_on_;
  std::atomic<int>* const deaths_;
};

TEST(GrpcReaperTest, DestroysOnAThreadOfItsOwn) {
  std::thread::id died_on;
  {
    GrpcReaper reaper;
    reaper.Make<Mortal>(died_on).reset();
  }
  EXPECT_NE(died_on, std::thread::id());
  EXPECT_NE(died_on, std::this_thread::get_id());
}

TEST(GrpcReaperTest, OutlivesWhatOthersStillHold) {
  std::thread::id died_on;
  std::atomic<bool> let_go{false};
  std::optional<GrpcReaper> reaper(std::in_place);
  std::shared_ptr<Mortal> held = reaper->Make<Mortal>(died_on);
  std::thread holder([&let_go, held = std::move(held)]() mutable {
    while (!let_go) std::this_thread::yield();
    held.reset();
  });
  std::thread destroyer([&reaper] { reaper.reset(); });
  let_go = true;
  destroyer.join();
  EXPECT_NE(died_on, std::thread::id()) << "the reaper has gone before what it made";
  EXPECT_NE(died_on, holder.get_id());
  holder.join();
}

// The last reference to an object may be a member of another object.
TEST(GrpcReaperTest, DestroysWhatDestroyingLetsGoOf) {
  struct Owner {
    explicit Owner(std::shared_ptr<Mortal> owned) : owned(std::move(owned)) {}
    std::shared_ptr<Mortal> owned;
  };
  std::thread::id died_on;
  {
    GrpcReaper reaper;
    reaper.Make<Owner>(reaper.Make<Mortal>(died_on)).reset();
  }
  EXPECT_NE(died_on, std::thread::id());
}

TEST(GrpcReaperTest, TakesFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  std::atomic<int> deaths{0};
  std::vector<std::thread::id> died_on(kThreads * kEach);
  {
    GrpcReaper reaper;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) reaper.Make<Mortal>(died_on[t * kEach + i], &deaths);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(deaths, kThreads * kEach);
  for (const std::thread::id id : died_on) EXPECT_EQ(id, died_on[0]);
}

}  // namespace
}  // namespace syncgrads
