#include "worker/data/jpeg.h"

#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

constexpr int kChannels = 3;
// Larger ones are taken for damaged headers.
constexpr int kMaxSide = 1 << 15;

struct Close {
  void operator()(void* decoder) const { tjDestroy(decoder); }
};

// The smallest of the decoder's scales with which the smaller side has at least
// `side` pixels; 1 if there is none.
tjscalingfactor ScaleFor(int width, int height, int64_t side) {
  tjscalingfactor best = {1, 1};
  int count = 0;
  const tjscalingfactor* factors = tjGetScalingFactors(&count);
  for (int i = 0; i < count; ++i) {
    const tjscalingfactor one = factors[i];
    const bool enough = std::min(TJSCALED(width, one), TJSCALED(height, one)) >= side;
    if (enough && one.num * best.denom < best.num * one.denom) best = one;
  }
  return best;
}

// Where an output pixel lies between two input pixels.
struct Between {
  int first = 0;
  int second = 0;
  float share = 0;  // of the second
};

// The places of `count` pixels, from `begin` on, of a line of `scaled` pixels that
// `given` are stretched to.
std::vector<Between> Places(int given, double scaled, double begin, int64_t count) {
  std::vector<Between> places;
  for (int64_t i = 0; i < count; ++i) {
    // Pixels are squares around their centres.
    const double at = (begin + static_cast<double>(i) + 0.5) * given / scaled - 0.5;
    const double clamped = std::clamp(at, 0.0, static_cast<double>(given - 1));
    Between between;
    between.first = static_cast<int>(clamped);
    between.second = std::min(between.first + 1, given - 1);
    between.share = static_cast<float>(clamped - between.first);
    places.push_back(between);
  }
  return places;
}

}  // namespace

absl::Status DecodeJpeg(absl::string_view bytes, const JpegCrop& crop, absl::Span<float> pixels) {
  const std::unique_ptr<void, Close> decoder(tjInitDecompress());
  if (decoder == nullptr) return absl::InternalError("libjpeg-turbo cannot start");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto damaged = [&] { return absl::DataLossError(tjGetErrorStr2(decoder.get())); };
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling,
                          &colours) != 0) {
    return damaged();
  }
  if (width <= 0 || height <= 0 || width > kMaxSide || height > kMaxSide) {
    return absl::DataLossError(
        absl::StrCat("it is ", width, "x", height, " pixels, sides are from 1 to ", kMaxSide));
  }
  const tjscalingfactor scale = ScaleFor(width, height, crop.smallest_side);
  width = TJSCALED(width, scale);
  height = TJSCALED(height, scale);
  std::vector<unsigned char> decoded(static_cast<size_t>(width) * height * kChannels);
  if (tjDecompress2(decoder.get(), data, bytes.size(), decoded.data(), width, /*pitch=*/0, height,
                    TJPF_RGB, /*flags=*/0) != 0) {
    // There are warnings that do not hurt, such as bytes between two markers.
    if (tjGetErrorCode(decoder.get()) != TJERR_WARNING ||
        absl::StrContains(tjGetErrorStr2(decoder.get()), "remature end") ||
        absl::StrContains(tjGetErrorStr2(decoder.get()), "orrupt")) {
      return damaged();
    }
  }

  const double ratio = static_cast<double>(crop.smallest_side) / std::min(width, height);
  const double scaled_width = std::max<double>(std::round(width * ratio), crop.size);
  const double scaled_height = std::max<double>(std::round(height * ratio), crop.size);
  const double left = std::floor((scaled_width - crop.size) * crop.left);
  const double top = std::floor((scaled_height - crop.size) * crop.top);
  std::vector<Between> columns = Places(width, scaled_width, left, crop.size);
  if (crop.mirrored) std::reverse(columns.begin(), columns.end());
  float* to = pixels.data();
  for (const Between& line : Places(height, scaled_height, top, crop.size)) {
    const unsigned char* above = &decoded[static_cast<size_t>(line.first) * width * kChannels];
    const unsigned char* below = &decoded[static_cast<size_t>(line.second) * width * kChannels];
    for (const Between& column : columns) {
      for (int channel = 0; channel < kChannels; ++channel) {
        const int first = column.first * kChannels + channel;
        const int second = column.second * kChannels + channel;
        const float upper = above[first] + column.share * (above[second] - above[first]);
        const float lower = below[first] + column.share * (below[second] - below[first]);
        *to++ = (upper + line.share * (lower - upper)) / 255.0f;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
