// Images of 8-bit pixels, as inputs of a model.

#ifndef SYNCGRADS_WORKER_NN_PIXELS_H_
#define SYNCGRADS_WORKER_NN_PIXELS_H_

#include <cstdint>

namespace syncgrads {

inline constexpr int64_t kPixelValues = 256;

// A batch of images, on the host, and the number that each pixel stands for. Refers to memory of
// the caller.
template <typename T>
struct Pixels {
  int64_t rows = 0;
  int64_t columns = 0;  // the pixels of an image; a multiple of `channels`
  int64_t channels = 1;
  const unsigned char* pixels = nullptr;  // [rows, columns], as Shape lays them out
  const T* numbers = nullptr;             // [channels, kPixelValues]

  int64_t size() const { return rows * columns; }
};

// Converts `count` pixels, a multiple of `channels`.
template <typename T>
void ConvertPixels(int64_t count, int64_t channels, const unsigned char* pixels, const T* numbers,
                   T* to) {
  for (int64_t i = 0; i < count; i += channels) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      to[i + channel] = numbers[channel * kPixelValues + pixels[i + channel]];
    }
  }
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_PIXELS_H_
