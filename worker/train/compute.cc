#include "worker/train/compute.h"

#include <algorithm>
#include <thread>

#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {

template <typename T>
std::unique_ptr<Device<T>> MakeDevice(const v1::JobFile& job, uint32_t world_size) {
  const uint32_t share = std::thread::hardware_concurrency() / std::max(world_size, 1u);
  const uint32_t threads = job.threads() > 0 ? job.threads() : std::max(share, 1u);
  return std::make_unique<CpuDevice<T>>(static_cast<int>(threads));
}

template std::unique_ptr<Device<float>> MakeDevice(const v1::JobFile&, uint32_t);
template std::unique_ptr<Device<double>> MakeDevice(const v1::JobFile&, uint32_t);

}  // namespace syncgrads
