#include "worker/data/images/jpeg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/data/images/jpeg_decoder.h"

namespace syncgrads {
namespace {

constexpr int kChannels = 3;
// Larger sides are treated as damage to the header.
constexpr int kMaxSide = 1 << 15;
// A header of some bytes can ask for this memory. It is that of an image of 44 million pixels whose
// colours are not subsampled.
constexpr int64_t kMaxCoefficientBytes = int64_t{256} << 20;

int Scaled(int side, int denominator) { return (side + denominator - 1) / denominator; }

// The largest denominator at which an image is not enlarged to the size in `crop`; 1 if there is
// none. libjpeg has other denominators, but without vector code: they take longer than the whole
// image.
int DenominatorFor(int width, int height, const Crop& crop) {
  constexpr double kTolerance = 1.01;
  for (const int denominator : {8, 4, 2}) {
    if (Scaled(width, denominator) * kTolerance >= crop.width &&
        Scaled(height, denominator) * kTolerance >= crop.height) {
      return denominator;
    }
  }
  return 1;
}

// The two input pixels around an output pixel, along one axis.
struct Between {
  int first = 0;
  int second = 0;
  float share = 0;  // weight of the second
};

// Returns the input pixels around each of `count` output pixels, from output pixel `begin` on,
// if a line of `given` pixels is scaled to `scaled` pixels.
std::vector<Between> Places(int given, double scaled, double begin, int64_t count) {
  std::vector<Between> places;
  for (int64_t i = 0; i < count; ++i) {
    // Distances are measured between the centres of pixels.
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

// Interpolates between two lines. The compiler vectorises this loop.
void Blend(const unsigned char* __restrict above, const unsigned char* __restrict below,
           float share, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = above[i] + share * (static_cast<float>(below[i]) - above[i]);
  }
}

// The three numbers of a pixel and an unused one, which together fill a vector register.
typedef float Four __attribute__((vector_size(16)));
typedef int FourWhole __attribute__((vector_size(16)));

Four Load(const float* from) {
  Four four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// Interpolates vertically first, over the columns that are needed, and then horizontally.
void Resample(const PixelRegion& image, const std::vector<Between>& columns,
              const std::vector<Between>& lines, absl::Span<unsigned char> pixels) {
  const size_t needed = static_cast<size_t>(image.width) * kChannels;
  std::vector<float> blended(needed + 1);
  unsigned char* to = pixels.data();
  for (const Between& line : lines) {
    Blend(image.Line(line.first), image.Line(line.second), line.share, needed, blended.data());
    for (const Between& column : columns) {
      const Four first = Load(&blended[static_cast<size_t>(column.first - image.left) * kChannels]);
      const Four second =
          Load(&blended[static_cast<size_t>(column.second - image.left) * kChannels]);
      // Rounds to the nearest whole number.
      const FourWhole pixel =
          __builtin_convertvector(first + column.share * (second - first) + 0.5f, FourWhole);
      for (int channel = 0; channel < kChannels; ++channel) {
        *to++ = static_cast<unsigned char>(pixel[channel]);
      }
    }
  }
}

}  // namespace

absl::Status DecodeJpeg(absl::string_view bytes, int64_t size,
                        absl::FunctionRef<Crop(int width, int height)> crop_of,
                        absl::Span<unsigned char> pixels) {
  JpegDecoder decoder;
  SYNCGRADS_RETURN_IF_ERROR(decoder.ReadHeader(bytes));
  if (decoder.width() > kMaxSide || decoder.height() > kMaxSide) {
    return absl::DataLossError(absl::StrCat("the image has ", decoder.width(), "x",
                                            decoder.height(),
                                            " pixels, each side must be from 1 to ", kMaxSide));
  }
  const int64_t coefficients = decoder.CoefficientBytes();
  if (coefficients > kMaxCoefficientBytes) {
    return absl::DataLossError(absl::StrCat(
        "the image is progressive and has ", decoder.width(), "x", decoder.height(),
        " pixels, which take ", coefficients, " bytes to decode; at most ", kMaxCoefficientBytes));
  }
  const Crop crop = crop_of(decoder.width(), decoder.height());
  const int denominator = DenominatorFor(decoder.width(), decoder.height(), crop);
  const std::vector<Between> columns =
      Places(Scaled(decoder.width(), denominator), crop.width, crop.left, size);
  const std::vector<Between> lines =
      Places(Scaled(decoder.height(), denominator), crop.height, crop.top, size);

  PixelRegion region;
  region.left = columns.front().first;
  region.top = lines.front().first;
  region.width = columns.back().second + 1 - region.left;
  region.height = lines.back().second + 1 - region.top;
  SYNCGRADS_RETURN_IF_ERROR(decoder.ReadRegion(denominator, region));
  Resample(region, columns, lines, pixels);
  return absl::OkStatus();
}

}  // namespace syncgrads
