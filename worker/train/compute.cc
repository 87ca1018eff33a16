#include "worker/train/compute.h"

#include <algorithm>
#include <thread>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

int ThreadsOf(const v1::JobFile& job, uint32_t world_size) {
  const uint32_t share = std::thread::hardware_concurrency() / std::max(world_size, 1u);
  return static_cast<int>(job.threads() > 0 ? job.threads() : std::max(share, 1u));
}

template <typename T>
std::unique_ptr<Device<T>> MakeDevice(const v1::JobFile& job, uint32_t world_size) {
  return std::make_unique<CpuDevice<T>>(ThreadsOf(job, world_size));
}

template std::unique_ptr<Device<float>> MakeDevice(const v1::JobFile&, uint32_t);
template std::unique_ptr<Device<double>> MakeDevice(const v1::JobFile&, uint32_t);

}  // namespace syncgrads
