// The shortest program that uses the client library: reduces one number over all workers.
//   trainer HOST:PORT RANK WORLD_SIZE
#include <cstdlib>
#include <iostream>

#include "client/client.h"

int main(int, char** argv) {
  const uint32_t rank = std::atoi(argv[2]), world_size = std::atoi(argv[3]);
  syncgrads::Client client(
      {.coordinator = argv[1], .job = "sum", .rank = rank, .world_size = world_size});
  float value = 1.0f + rank, sum = 0;
  absl::Status status = client.Join(absl::Minutes(1));
  if (status.ok()) {
    status = client
                 .AllReduce("sum", {syncgrads::DType::kF32, &value, 1},
                            {syncgrads::DType::kF32, &sum, 1}, syncgrads::Reduction::kSum,
                            absl::Minutes(1))
                 .status();
  }
  if (status.ok()) status = client.Leave(absl::Minutes(1));
  std::cout << "sum " << sum << ", " << status << std::endl;
  return status.ok() ? 0 : 1;
}
