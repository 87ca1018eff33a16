// The workers of one job, each a thread with a client of its own, on a cluster in
// this process.

#ifndef SYNCGRADS_TESTS_CLIENT_WORKERS_H_
#define SYNCGRADS_TESTS_CLIENT_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {

inline constexpr absl::Duration kTimeout = absl::Seconds(20);

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

class Workers {
 public:
  // All have joined when this returns.
  Workers(Cluster& cluster, uint32_t count, const std::string& job = "job") {
    for (uint32_t rank = 0; rank < count; ++rank) {
      ClientOptions options;
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

  // Calls `work` for each worker, on a thread of its own, and waits for all.
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
