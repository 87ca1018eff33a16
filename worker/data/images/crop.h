// Which part of an image a model gets.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_CROP_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_CROP_H_

#include <cstdint>

#include "worker/base/random.h"

namespace syncgrads {

// An image is scaled to width x height, and a square is cropped at (left, top). In pixels; need not
// be whole numbers.
struct Crop {
  double width = 0;
  double height = 0;
  double left = 0;
  double top = 0;
};

// The image is scaled so that its shorter side has `smallest_side` pixels. The position of the
// square of `size` pixels is from 0 (leftmost, topmost) to 1 (rightmost, bottommost). `size` is at
// most `smallest_side`.
struct ScaledCrop {
  int64_t smallest_side = 256;
  int64_t size = 224;
  double left = 0.5;
  double top = 0.5;

  Crop operator()(int width, int height) const;
};

// Draws a rectangle of the image, which becomes the square of `size` pixels. Its share of the
// image's area is uniform in [min_area, 1]; the logarithm of its aspect ratio is uniform between
// those of 3/4 and 4/3 (Szegedy et al. 2015, "Going deeper with convolutions"). After ten
// rectangles that do not fit into the image, the largest at its centre with a permitted ratio is
// used.
Crop DrawResizedCrop(int width, int height, int64_t size, double min_area, RandomStream& random);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_CROP_H_
