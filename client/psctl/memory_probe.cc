#include "client/psctl/memory_probe.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/shm/region.h"

namespace syncgrads::client {
namespace {

constexpr size_t kBytes = 16 << 20;
// It stays in a processor's cache, as what a server reduces does.
constexpr size_t kTargetBytes = 256 << 10;
constexpr int kPasses = 4;

}  // namespace

std::optional<double> MeasureSharedMemory() {
  const auto region = SharedRegion::Create("syncgrads-probe", kBytes);
  if (!region.ok()) return std::nullopt;
  // As a server reads the memory of a worker: through a mapping of its own.
  const auto descriptor = (*region)->ReadOnlyDescriptor();
  if (!descriptor.ok()) return std::nullopt;
  const auto peer = PeerRegion::Map(*descriptor);
  if (!peer.ok()) return std::nullopt;
  std::vector<std::byte> target(kTargetBytes);
  double fastest = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::thread([&region, pass] { std::memset((*region)->data(), pass, kBytes); }).join();
    const absl::Time begun = MonotonicNow();
    for (size_t at = 0; at < kBytes; at += kTargetBytes) {
      std::memcpy(target.data(), (*peer)->bytes().data() + at, kTargetBytes);
      // Otherwise the compiler may leave out a copy that nobody reads.
      asm volatile("" : : "r"(target.data()) : "memory");
    }
    const absl::Duration took = MonotonicNow() - begun;
    fastest = std::max(fastest, kBytes / std::max(1e-9, absl::ToDoubleSeconds(took)));
  }
  return fastest;
}

}  // namespace syncgrads::client
