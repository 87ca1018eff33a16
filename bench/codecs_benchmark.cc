// Measures how fast float32 numbers are encoded and decoded, compared with memcpy of the same
// numbers.
//
// All results are in bytes of float32 per second, whatever number of bytes is written.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/codec/codec.h"
#include "common/codec/error_feedback.h"

namespace syncgrads {
namespace {

constexpr size_t kElements = 256 << 10;  // 1 MiB
constexpr size_t kSpanBytes = kElements * sizeof(float);
// The number of sets that are used in turn, so that numbers are read from memory and not from a
// cache.
constexpr size_t kSets = 64;

// kSets spans of numbers that are distributed like gradients.
const std::vector<float>& Gradients() {
  static const std::vector<float>* const gradients = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0, 0.01f);
    auto* values = new std::vector<float>(kSets * kElements);
    for (float& value : *values) value = normal(random);
    return values;
  }();
  return *gradients;
}

void Copy(benchmark::State& state) {
  const std::vector<float>& gradients = Gradients();
  std::vector<float> out(kSets * kElements);
  size_t set = 0;
  for (auto _ : state) {
    std::memcpy(&out[set * kElements], &gradients[set * kElements], kSpanBytes);
    benchmark::ClobberMemory();
    set = (set + 1) % kSets;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSpanBytes));
}

// Encodes as a worker does, with the residual of the previous step.
void Encode(benchmark::State& state, const Encoding& encoding) {
  const auto codec = MakeCodec(encoding);
  const std::vector<float>& gradients = Gradients();
  std::vector<float> residual(kSets * kElements);
  std::vector<std::byte> out(EncodedSpanBytes(*codec, kElements));
  size_t set = 0;
  for (auto _ : state) {
    FeedbackNorms norms;
    EncodeSpanWithFeedback(*codec, reinterpret_cast<const std::byte*>(&gradients[set * kElements]),
                           &residual[set * kElements], kElements, out.data(),
                           &residual[set * kElements], norms);
    benchmark::DoNotOptimize(norms);
    benchmark::ClobberMemory();
    set = (set + 1) % kSets;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSpanBytes));
  state.counters["encoded"] = static_cast<double>(out.size());
}

// Decodes as a server does, into a block that stays in the first-level cache.
void Decode(benchmark::State& state, const Encoding& encoding) {
  const auto codec = MakeCodec(encoding);
  const std::vector<float>& gradients = Gradients();
  std::vector<std::byte> encoded(kSets * EncodedSpanBytes(*codec, kElements));
  std::byte* to = encoded.data();
  for (size_t i = 0; i < kSets * kElements; i += kCodecBlock) {
    codec->Encode(&gradients[i], kCodecBlock, to);
    to += codec->EncodedBytes(kCodecBlock);
  }
  alignas(64) float block[kCodecBlock];
  size_t set = 0;
  for (auto _ : state) {
    const std::byte* from = encoded.data() + set * EncodedSpanBytes(*codec, kElements);
    for (size_t i = 0; i < kElements; i += kCodecBlock) {
      benchmark::DoNotOptimize(codec->Check(from, kCodecBlock));
      codec->Decode(from, kCodecBlock, block);
      benchmark::DoNotOptimize(block);
      from += codec->EncodedBytes(kCodecBlock);
    }
    benchmark::ClobberMemory();
    set = (set + 1) % kSets;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSpanBytes));
}

BENCHMARK(Copy);
BENCHMARK_CAPTURE(Encode, f16, Encoding{Codec::kF16});
BENCHMARK_CAPTURE(Encode, bf16, Encoding{Codec::kBF16});
BENCHMARK_CAPTURE(Encode, int8, Encoding{Codec::kInt8});
BENCHMARK_CAPTURE(Encode, top_k, Encoding{Codec::kTopK, 0.01});
BENCHMARK_CAPTURE(Encode, one_bit, Encoding{Codec::kOneBit});
BENCHMARK_CAPTURE(Decode, f16, Encoding{Codec::kF16});
BENCHMARK_CAPTURE(Decode, bf16, Encoding{Codec::kBF16});
BENCHMARK_CAPTURE(Decode, int8, Encoding{Codec::kInt8});
BENCHMARK_CAPTURE(Decode, top_k, Encoding{Codec::kTopK, 0.01});
BENCHMARK_CAPTURE(Decode, one_bit, Encoding{Codec::kOneBit});

}  // namespace
}  // namespace syncgrads

BENCHMARK_MAIN();
