// The workers of one job, on a cluster in this process. Each worker has a client of its own, and a
// thread of its own while it works.

#ifndef SYNCGRADS_TESTS_CLIENT_WORKERS_H_
#define SYNCGRADS_TESTS_CLIENT_WORKERS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {

// The timeout of every wait that is expected to end. Instrumented programs on a busy machine are
// slow.
inline constexpr absl::Duration kTimeout = absl::Minutes(2);

#define ASSERT_OK(expression)                                          \
  do {                                                                 \
    const auto& asserted = (expression);                               \
    ASSERT_TRUE(asserted.ok()) << ::syncgrads::testing::Say(asserted); \
  } while (false)
#define EXPECT_OK(expression)                                          \
  do {                                                                 \
    const auto& expected = (expression);                               \
    EXPECT_TRUE(expected.ok()) << ::syncgrads::testing::Say(expected); \
  } while (false)

inline std::string Say(const absl::Status& status) { return status.ToString(); }
template <typename T>
std::string Say(const absl::StatusOr<T>& result) {
  return result.status().ToString();
}

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Calls `wait`, which must return DeadlineExceeded, until the message contains all of `texts`.
// Returns the last message. One call is not enough: a message has only what servers have reported
// before the deadline of the call.
template <typename Wait>
std::string AwaitReason(const std::vector<std::string>& texts, Wait wait) {
  const absl::Time deadline = absl::Now() + kTimeout;
  while (true) {
    const auto result = wait();
    const absl::Status& status = StatusOf(result);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    const std::string reason(status.message());
    const bool complete = std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return absl::StrContains(reason, text);
    });
    if (complete || !absl::IsDeadlineExceeded(status) || absl::Now() > deadline) return reason;
  }
}

class Workers {
 public:
  // Returns when all workers have joined. They have the options `common`, except for the
  // coordinator, the job, the name, the rank and the world size.
  Workers(Cluster& cluster, uint32_t count, const std::string& job = "job",
          const ClientOptions& common = {}) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      ClientOptions options = common;
      options.coordinator = cluster.coordinator();
      options.job = job;
      options.name = absl::StrCat("w", rank);
      options.rank = rank;
      options.world_size = count;
      clients_.push_back(std::make_unique<Client>(std::move(options)));
    }
    Run([](uint32_t rank, Client& client) {
      ASSERT_OK(client.Join(kTimeout));
      ASSERT_EQ(client.rank(), rank);
    });
  }

  // Calls `work` for each worker on a thread of its own, and returns when all calls have returned.
  void Run(const std::function<void(uint32_t rank, Client& client)>& work) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < clients_.size(); ++rank) {
      threads.emplace_back([&work, rank, this] { work(rank, *clients_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Client& operator[](uint32_t rank) { return *clients_[rank]; }
  std::unique_ptr<Client> Take(uint32_t rank) { return std::move(clients_[rank]); }

 private:
  std::vector<std::unique_ptr<Client>> clients_;
};

template <typename T>
size_t BytesOf(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}
template <typename T>
ConstArray In(const std::vector<T>& values) {
  return ArrayOf(absl::MakeConstSpan(values));
}
template <typename T>
Array Out(std::vector<T>& values) {
  return MutableArrayOf(absl::MakeSpan(values));
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_CLIENT_WORKERS_H_
