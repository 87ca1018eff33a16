#include <cstdio>
#include <cstdlib>

#include "nvtx3/nvToolsExt.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"

namespace syncgrads::emulation {
namespace {

thread_local Ranges ranges;

}  // namespace

Ranges RangesOfThread() { return ranges; }

}  // namespace syncgrads::emulation

using syncgrads::emulation::ranges;

int nvtxRangePushA(const char*) {
  ++ranges.begun;
  return static_cast<int>(ranges.open++);
}

int nvtxRangePop() {
  if (ranges.open == 0) {
    std::fputs("emulation: a range ends that has not begun\n", stderr);
    std::abort();
  }
  return static_cast<int>(--ranges.open);
}
