// The shape of one sample between two layers.

#ifndef SYNCGRADS_WORKER_NN_SHAPE_H_
#define SYNCGRADS_WORKER_NN_SHAPE_H_

#include <cstdint>
#include <string>

namespace syncgrads {

// A list of numbers, or an image. In memory an image is one row of a matrix: line by line, pixel
// by pixel, with the channels of a pixel next to each other.
struct Shape {
  int64_t channels = 0;
  int64_t height = 1;
  int64_t width = 1;
  bool is_image = false;

  static Shape Flat(int64_t numbers) { return {numbers, 1, 1, false}; }
  static Shape Image(int64_t channels, int64_t height, int64_t width) {
    return {channels, height, width, true};
  }

  int64_t positions() const { return height * width; }
  int64_t size() const { return channels * height * width; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// Returns "64" for a list; channels x height x width for an image, such as "3x224x224".
std::string ToString(const Shape& shape);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_SHAPE_H_
