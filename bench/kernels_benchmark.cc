// Measures how fast contributions are averaged, compared with memcpy of the same bytes.
//
// Both results are in bytes accessed per second. An average of N buffers reads N and writes one; a
// copy reads one and writes one.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/dtype.h"
#include "common/kernels/reduce.h"
#include "common/optim/update.h"
#include "common/update_rule.h"

namespace syncgrads {
namespace {

// Sets of buffers that are used in turn, so that data is read from memory, as after a receive, and
// not from a cache. If the cache is to be measured, there is only one set.
class Buffers {
 public:
  Buffers(size_t buffers, size_t bytes, bool cached)
      : sets_(cached ? 1 : 1 + (size_t{256} << 20) / (buffers * bytes)) {
    for (size_t i = 0; i < sets_ * buffers; ++i) {
      // Buffers do not begin at a cache line, like a payload that follows a frame's header.
      memory_.emplace_back(bytes + 64, std::byte{0});
    }
    buffers_ = buffers;
  }
  void Next() { set_ = (set_ + 1) % sets_; }
  std::byte* operator[](size_t i) { return memory_[set_ * buffers_ + i].data() + 16; }

 private:
  size_t sets_, buffers_;
  size_t set_ = 0;
  std::vector<std::vector<std::byte>> memory_;
};

void Average(benchmark::State& state, DType dtype, bool weighted, bool cached) {
  const size_t members = state.range(0);
  const size_t bytes = state.range(1);
  Buffers buffers(members + 1, bytes, cached);
  std::vector<WeightedSource> sources(members);
  for (auto _ : state) {
    for (size_t i = 0; i < members; ++i) {
      sources[i] = {buffers[i], weighted ? 1.0 + static_cast<double>(i) : 1.0};
    }
    Reduce(dtype, Reduction::kAverage, sources, bytes / SizeOf(dtype), buffers[members]);
    benchmark::ClobberMemory();
    buffers.Next();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * (members + 1) * bytes));
}

void Copy(benchmark::State& state, bool cached) {
  const size_t bytes = state.range(1);
  Buffers buffers(2, bytes, cached);
  for (auto _ : state) {
    std::memcpy(buffers[1], buffers[0], bytes);
    benchmark::ClobberMemory();
    buffers.Next();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2 * bytes));
}

void Update(benchmark::State& state, const Optimizer& rule) {
  const size_t bytes = state.range(0);
  const size_t slots = SlotCount(rule);
  Buffers buffers(2 + slots, bytes, false);
  std::vector<std::byte*> slot(slots);
  for (auto _ : state) {
    for (size_t i = 0; i < slots; ++i) slot[i] = buffers[2 + i];
    const std::vector<const std::byte*> old_slot(slot.begin(), slot.end());
    ApplyUpdate(rule, DType::kF32, 1, buffers[0], bytes / 4, buffers[1], buffers[1], old_slot,
                slot);
    benchmark::ClobberMemory();
    buffers.Next();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * (3 + 2 * slots) * bytes));
}

constexpr int64_t kBytes = 1 << 20;
void Sizes(benchmark::internal::Benchmark* b) {
  for (const int64_t members : {2, 4, 16, 64}) b->Args({members, kBytes});
}
void SmallSizes(benchmark::internal::Benchmark* b) {
  for (const int64_t members : {2, 4, 16}) b->Args({members, 64 << 10});
}

BENCHMARK_CAPTURE(Copy, memory, false)->Args({1, kBytes});
BENCHMARK_CAPTURE(Average, f32, DType::kF32, false, false)->Apply(Sizes);
BENCHMARK_CAPTURE(Average, f32_weighted, DType::kF32, true, false)->Apply(Sizes);
BENCHMARK_CAPTURE(Average, f64, DType::kF64, false, false)->Apply(Sizes);
BENCHMARK_CAPTURE(Average, f16, DType::kF16, false, false)->Apply(Sizes);
BENCHMARK_CAPTURE(Average, bf16, DType::kBF16, false, false)->Apply(Sizes);
BENCHMARK_CAPTURE(Copy, cached, true)->Args({1, 64 << 10});
BENCHMARK_CAPTURE(Average, f32_cached, DType::kF32, false, true)->Apply(SmallSizes);
BENCHMARK_CAPTURE(Average, f16_cached, DType::kF16, false, true)->Apply(SmallSizes);
BENCHMARK_CAPTURE(Update, sgd, Sgd{})->Arg(kBytes);
BENCHMARK_CAPTURE(Update, momentum, Momentum{})->Arg(kBytes);
BENCHMARK_CAPTURE(Update, adam, Adam{})->Arg(kBytes);

}  // namespace
}  // namespace syncgrads

BENCHMARK_MAIN();
