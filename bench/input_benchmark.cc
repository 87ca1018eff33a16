// Measures how fast JPEG images are converted to a model's input, compared with a loop that only
// decodes them with libjpeg-turbo at the same scale.

#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "common/process_setup.h"
#include "worker/data/images/crop.h"
#include "worker/data/images/jpeg.h"

namespace syncgrads {
namespace {

constexpr int kSmallestSide = 256;
constexpr int kSize = 224;

// Returns a JPEG of smooth shapes and noise, with about as many bytes as a photograph.
std::string MakeImage(int width, int height) {
  std::minstd_rand random(1);
  std::normal_distribution<double> noise(0, 14);
  std::vector<unsigned char> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int channel = 0; channel < 3; ++channel) {
        const double value = 128 + 60 * std::sin(x * .03 + channel) * std::cos(y * .021) +
                             30 * std::sin(x * y * .0005) + noise(random);
        pixels.push_back(static_cast<unsigned char>(std::clamp(value, 0.0, 255.0)));
      }
    }
  }
  void* const encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT: the library's type
  tjCompress2(encoder, pixels.data(), width, 0, height, TJPF_RGB, &bytes, &size, TJSAMP_420, 85, 0);
  const std::string jpeg(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return jpeg;
}

void Bare(benchmark::State& state, int width, int height) {
  const std::string jpeg = MakeImage(width, height);
  const auto* bytes = reinterpret_cast<const unsigned char*>(jpeg.data());
  void* const decoder = tjInitDecompress();
  tjscalingfactor scale = {1, 1};
  while (std::min(width, height) >= 2 * scale.denom * kSmallestSide && scale.denom < 8) {
    scale.denom *= 2;
  }
  const int to_width = TJSCALED(width, scale), to_height = TJSCALED(height, scale);
  std::vector<unsigned char> pixels(static_cast<size_t>(to_width) * to_height * 3);
  for (auto _ : state) {
    tjDecompress2(decoder, bytes, jpeg.size(), pixels.data(), to_width, 0, to_height, TJPF_RGB, 0);
    benchmark::ClobberMemory();
  }
  tjDestroy(decoder);
  state.SetItemsProcessed(state.iterations());
}

// Crops at a random position, as in training. Mirroring costs little and is not measured.
void Ours(benchmark::State& state, int width, int height) {
  const std::string jpeg = MakeImage(width, height);
  std::vector<unsigned char> pixels(size_t{3} * kSize * kSize);
  std::minstd_rand random(1);
  std::uniform_real_distribution<double> place(0, 1);
  ScaledCrop crop;
  crop.smallest_side = kSmallestSide;
  crop.size = kSize;
  for (auto _ : state) {
    crop.left = place(random);
    crop.top = place(random);
    if (!DecodeJpeg(jpeg, kSize, crop, absl::MakeSpan(pixels)).ok()) {
      state.SkipWithError("damaged");
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}

#define SIZE(width, height)                                                                   \
  BENCHMARK_CAPTURE(Bare, width##x##height, width, height)->ThreadRange(1, 2)->UseRealTime(); \
  BENCHMARK_CAPTURE(Ours, width##x##height, width, height)->ThreadRange(1, 2)->UseRealTime()
SIZE(500, 375);
SIZE(640, 480);
SIZE(1280, 960);

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();  // the same setup as in ps-worker
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
