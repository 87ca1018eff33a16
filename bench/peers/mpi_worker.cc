// One rank of OpenMPI's all-reduce. Arguments: the conductor's socket and the number of bytes.

#include <mpi/mpi.h>

#include <cstdlib>
#include <vector>

#include "bench/conducted.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0, world_size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  std::vector<float> data(std::strtoull(argv[2], nullptr, 10) / sizeof(float));
  syncgrads::bench::Values values(data.data(), data.data(), data.size(), rank, world_size);
  const float scale = 1.0f / static_cast<float>(world_size);
  const int code = syncgrads::bench::FollowConductor(argv[1], rank, values, [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    for (float& value : data) value *= scale;
  });
  MPI_Finalize();
  return code;
}
