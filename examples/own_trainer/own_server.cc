// A trainer that needs no other program: its workers are threads, and their server is in the same
// process. Every worker has a few points of y = 2x, as in own_trainer.cc.
//
//   own_server WORKERS

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "server/service/events/queued_journal.h"

namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

void Work(const std::string& coordinator, uint32_t rank, uint32_t workers, float& w) {
  syncgrads::Client client(
      {.coordinator = coordinator, .job = "line", .rank = rank, .world_size = workers});
  Check(client.Join(kTimeout));
  auto group =
      client.Register({.name = "model", .tensors = {{"w", syncgrads::DType::kF32, {}}}}, kTimeout);
  Check(group.status());
  const float x = 1.0f + rank, y = 2 * x;
  for (int step = 0; step < 50; ++step) {
    const float gradient = (w * x - y) * x;
    float mean = 0;
    Check((*group)->Push(syncgrads::TensorId{0}, &gradient, sizeof gradient, &mean));
    Check((*group)->WaitStep(kTimeout).status());
    w -= 0.1f * mean;
  }
  Check((*group)->End(kTimeout));
  Check(client.Leave(kTimeout));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const uint32_t workers = std::atoi(argv[1]);
  syncgrads::server::QueuedJournal journal(STDERR_FILENO, {.name = "server"});
  auto server = syncgrads::server::Server::Start({.bind = "127.0.0.1"}, journal);
  Check(server.status());
  const std::string address = "127.0.0.1:" + std::to_string((*server)->port());
  std::vector<float> w(workers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] { Work(address, rank, workers, w[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t rank = 0; rank < workers; ++rank) {
    std::cout << "rank " << rank << ": w = " << w[rank] << std::endl;
  }
}
