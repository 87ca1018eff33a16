// The shortest complete trainer: every worker has a few points of y = 2x, and all
// end with the same w.
//
//   own_trainer HOST:PORT RANK WORLD_SIZE

#include <cstdlib>
#include <iostream>
#include <vector>

#include "client/client.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint32_t rank = std::atoi(argv[2]), world_size = std::atoi(argv[3]);
  const absl::Duration timeout = absl::Seconds(30);
  const auto check = [](const absl::Status& status) {
    if (status.ok()) return;
    std::cerr << status << std::endl;
    std::exit(1);
  };

  syncgrads::Client client(
      {.coordinator = argv[1], .job = "line", .rank = rank, .world_size = world_size});
  check(client.Join(timeout));
  auto group =
      client.Register({.name = "model", .tensors = {{"w", syncgrads::DType::kF32, {}}}}, timeout);
  check(group.status());

  float w = 0;
  const float x = 1.0f + rank, y = 2 * x;
  for (int step = 0; step < 50; ++step) {
    const float gradient = (w * x - y) * x;
    float mean = 0;
    check((*group)->Push(syncgrads::TensorId{0}, &gradient, sizeof gradient, &mean));
    check((*group)->WaitStep(timeout).status());
    w -= 0.1f * mean;
  }
  std::cout << "rank " << client.rank() << ": w = " << w << std::endl;
  check((*group)->End(timeout));
  check(client.Leave(timeout));
}
