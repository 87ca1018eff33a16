// One rank of gloo's ring all-reduce over TCP. Arguments: the conductor's socket, the number of
// bytes, the rank, the world size, an empty directory for the rendezvous, and the address of this
// rank.

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bench/conducted.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const uint32_t rank = std::atoi(argv[3]), world_size = std::atoi(argv[4]);
  gloo::transport::tcp::attr address;
  address.hostname = argv[6];
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(address);
  gloo::rendezvous::FileStore store(argv[5]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
  context->setTimeout(std::chrono::minutes(2));
  context->connectFullMesh(store, device);

  std::vector<float> data(std::strtoull(argv[2], nullptr, 10) / sizeof(float));
  syncgrads::bench::Values values(data.data(), data.data(), data.size(), rank, world_size);
  const float scale = 1.0f / static_cast<float>(world_size);
  return syncgrads::bench::FollowConductor(argv[1], rank, values, [&] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
    for (float& value : data) value *= scale;
  });
}
