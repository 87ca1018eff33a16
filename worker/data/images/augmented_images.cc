#include "worker/data/images/augmented_images.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "worker/base/random.h"

namespace syncgrads {
namespace {

// Separates the changes of images from other uses of the job's seed.
constexpr uint64_t kAugmentationStream = 6;

// Moves the image `right` and `down` by these numbers of pixels. What enters is 0.
template <typename Number>
void ShiftBy(const Shape& shape, int64_t right, int64_t down, absl::Span<Number> pixels) {
  const std::vector<Number> given(pixels.begin(), pixels.end());
  std::fill(pixels.begin(), pixels.end(), Number{0});
  const int64_t first = std::max<int64_t>(right, 0);
  const int64_t count = std::max<int64_t>(shape.width - std::abs(right), 0) * shape.channels;
  for (int64_t line = std::max<int64_t>(down, 0); line < shape.height + std::min<int64_t>(down, 0);
       ++line) {
    const auto from =
        given.begin() + ((line - down) * shape.width + first - right) * shape.channels;
    std::copy(from, from + count, pixels.begin() + (line * shape.width + first) * shape.channels);
  }
}

template <typename Number>
void Mirror(const Shape& shape, absl::Span<Number> pixels) {
  for (int64_t line = 0; line < shape.height; ++line) {
    Number* left = &pixels[static_cast<size_t>(line * shape.width * shape.channels)];
    Number* right = left + (shape.width - 1) * shape.channels;
    for (; left < right; left += shape.channels, right -= shape.channels) {
      std::swap_ranges(left, left + shape.channels, right);
    }
  }
}

// The luminance of a pixel (ITU-R BT.601); of one with another number of channels than 3, the
// first.
float LuminanceOf(const float* pixel, int64_t channels) {
  return channels == 3 ? 0.299f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2] : pixel[0];
}

// Moves `value` away from `centre` by `factor`, within 0 and 1.
float Spread(float centre, float factor, float value) {
  return std::clamp(centre + factor * (value - centre), 0.0f, 1.0f);
}

void SetBrightness(float factor, absl::Span<float> pixels) {
  for (float& value : pixels) value = Spread(0, factor, value);
}

void SetContrast(int64_t channels, float factor, absl::Span<float> pixels) {
  double sum = 0;
  for (size_t i = 0; i < pixels.size(); i += static_cast<size_t>(channels)) {
    sum += LuminanceOf(&pixels[i], channels);
  }
  const float mean =
      static_cast<float>(sum * static_cast<double>(channels) / static_cast<double>(pixels.size()));
  for (float& value : pixels) value = Spread(mean, factor, value);
}

void SetSaturation(float factor, absl::Span<float> pixels) {
  for (size_t i = 0; i < pixels.size(); i += 3) {
    const float grey = LuminanceOf(&pixels[i], 3);
    for (size_t channel = 0; channel < 3; ++channel) {
      pixels[i + channel] = Spread(grey, factor, pixels[i + channel]);
    }
  }
}

// Moves and mirrors an image.
template <typename Number>
void Move(const Shape& shape, const v1::Augmentation& augmentation, RandomStream& random,
          absl::Span<Number> pixels) {
  if (augmentation.shift() > 0) {
    const auto shift = static_cast<int64_t>(augmentation.shift());
    const auto draw = [&] {
      return static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(2 * shift + 1))) - shift;
    };
    const int64_t right = draw();
    const int64_t down = draw();
    ShiftBy(shape, right, down, pixels);
  }
  if (random.NextUniform() < augmentation.mirror()) Mirror(shape, pixels);
}

bool ChangesColours(const v1::Augmentation& augmentation) {
  return augmentation.brightness() > 0 || augmentation.contrast() > 0 ||
         augmentation.saturation() > 0;
}

void ChangeColours(const Shape& shape, const v1::Augmentation& augmentation, RandomStream& random,
                   absl::Span<float> pixels) {
  const auto draw_factor = [&](double range) {
    return static_cast<float>(1 + range * (2 * random.NextUniform() - 1));
  };
  if (augmentation.brightness() > 0) SetBrightness(draw_factor(augmentation.brightness()), pixels);
  if (augmentation.contrast() > 0) {
    SetContrast(shape.channels, draw_factor(augmentation.contrast()), pixels);
  }
  if (augmentation.saturation() > 0) SetSaturation(draw_factor(augmentation.saturation()), pixels);
}

unsigned char ToByte(float number) { return static_cast<unsigned char>(number * 255.0f + 0.5f); }

}  // namespace

absl::Status AugmentedImages::Read(size_t image, const ImageUse& use,
                                   absl::Span<float> pixels) const {
  if (has_bytes()) return ReadFromBytes(image, use, pixels);
  SYNCGRADS_RETURN_IF_ERROR(images_->Read(image, use, pixels));
  if (!use.training) return absl::OkStatus();
  RandomStream random(use.seed, {kAugmentationStream, use.step, image});
  Move(shape(), augmentation_, random, pixels);
  ChangeColours(shape(), augmentation_, random, pixels);
  return absl::OkStatus();
}

absl::Status AugmentedImages::ReadBytes(size_t image, const ImageUse& use,
                                        absl::Span<unsigned char> pixels) const {
  SYNCGRADS_RETURN_IF_ERROR(images_->ReadBytes(image, use, pixels));
  if (!use.training) return absl::OkStatus();
  RandomStream random(use.seed, {kAugmentationStream, use.step, image});
  Move(shape(), augmentation_, random, pixels);
  if (!ChangesColours(augmentation_)) return absl::OkStatus();
  std::vector<float> numbers(pixels.size());
  std::transform(pixels.begin(), pixels.end(), numbers.begin(), FromByte);
  ChangeColours(shape(), augmentation_, random, absl::MakeSpan(numbers));
  std::transform(numbers.begin(), numbers.end(), pixels.begin(), ToByte);
  return absl::OkStatus();
}

}  // namespace syncgrads
