#include "worker/data/images/crop.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

constexpr double kMaxRatio = 4.0 / 3;
constexpr int kMaxDraws = 10;

// The crop that shows the rectangle at (left, top) as a square of `size` pixels.
Crop Show(int width, int height, int64_t size, double left, double top, double rectangle_width,
          double rectangle_height) {
  const double across = static_cast<double>(size) / rectangle_width;
  const double down = static_cast<double>(size) / rectangle_height;
  return {width * across, height * down, left * across, top * down};
}

}  // namespace

Crop ScaledCrop::operator()(int width, int height) const {
  const double side = static_cast<double>(size);
  const double ratio = static_cast<double>(smallest_side) / std::min(width, height);
  Crop crop;
  crop.width = std::max(std::round(width * ratio), side);
  crop.height = std::max(std::round(height * ratio), side);
  crop.left = std::floor((crop.width - side) * left);
  crop.top = std::floor((crop.height - side) * top);
  return crop;
}

Crop DrawResizedCrop(int width, int height, int64_t size, double min_area, RandomStream& random) {
  const double area = static_cast<double>(width) * height;
  for (int draw = 0; draw < kMaxDraws; ++draw) {
    const double share = min_area + (1 - min_area) * random.NextUniform();
    const double ratio = std::exp(std::log(kMaxRatio) * (2 * random.NextUniform() - 1));
    const double across = std::round(std::sqrt(area * share * ratio));
    const double down = std::round(std::sqrt(area * share / ratio));
    if (across < 1 || down < 1 || across > width || down > height) continue;
    const double left = std::floor((width - across + 1) * random.NextUniform());
    const double top = std::floor((height - down + 1) * random.NextUniform());
    return Show(width, height, size, left, top, across, down);
  }
  const double across = std::min<double>(width, std::round(height * kMaxRatio));
  const double down = std::min<double>(height, std::round(width * kMaxRatio));
  return Show(width, height, size, std::floor((width - across) / 2),
              std::floor((height - down) / 2), across, down);
}

}  // namespace syncgrads
