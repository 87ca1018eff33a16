// Random changes of images in training.

#include "worker/data/images/augmented_images.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/testing/status.h"
#include "worker/data/images/byte_images.h"

namespace syncgrads {
namespace {

constexpr int64_t kWidth = 4, kHeight = 3;

// `images` equal images of `channels` channels. In an image, each number is another.
std::shared_ptr<const ImageSource> EqualImages(int64_t channels, int images) {
  std::string bytes;
  for (int64_t i = 0; i < channels * kWidth * kHeight; ++i) {
    bytes.push_back(static_cast<char>(7 * i));
  }
  const size_t size = bytes.size();
  std::string all;
  for (int i = 0; i < images; ++i) all += bytes;
  return std::make_shared<ByteImages>(Shape::Image(channels, kHeight, kWidth), std::move(all), size,
                                      0, "images");
}

std::shared_ptr<const ImageSource> OneImage(int64_t channels) { return EqualImages(channels, 1); }

// The images of another source, without its bytes.
class FloatImages : public ImageSource {
 public:
  explicit FloatImages(std::shared_ptr<const ImageSource> images) : images_(std::move(images)) {}
  const Shape& shape() const override { return images_->shape(); }
  std::string NameOf(size_t image) const override { return images_->NameOf(image); }
  absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const override {
    return images_->Read(image, use, pixels);
  }
  bool is_slow() const override { return false; }

 private:
  const std::shared_ptr<const ImageSource> images_;
};

std::vector<float> ReadOf(const ImageSource& images, const ImageUse& use, size_t image = 0) {
  std::vector<float> pixels(static_cast<size_t>(images.shape().size()));
  SYNCGRADS_EXPECT_OK(images.Read(image, use, absl::MakeSpan(pixels)));
  return pixels;
}

std::vector<float> ReadAugmented(const v1::Augmentation& augmentation, const ImageUse& use,
                                 int64_t channels = 3) {
  return ReadOf(AugmentedImages(std::make_shared<FloatImages>(OneImage(channels)), augmentation),
                use);
}

float Luminance(const std::vector<float>& pixels, size_t pixel) {
  return 0.299f * pixels[3 * pixel] + 0.587f * pixels[3 * pixel + 1] +
         0.114f * pixels[3 * pixel + 2];
}

ImageUse Step(uint64_t step) { return {/*training=*/true, /*seed=*/3, step}; }

TEST(AugmentedImagesTest, OnlyTrainingChangesImagesAndTheSameStepChangesThemAlike) {
  v1::Augmentation all;
  all.set_mirror(0.5);
  all.set_shift(2);
  all.set_brightness(0.4);
  all.set_contrast(0.4);
  all.set_saturation(0.4);
  const std::vector<float> plain = ReadOf(*OneImage(3), {});
  EXPECT_EQ(ReadAugmented(all, {}), plain);
  EXPECT_EQ(ReadAugmented(v1::Augmentation(), Step(1)), plain);
  EXPECT_NE(ReadAugmented(all, Step(1)), plain);
  EXPECT_EQ(ReadAugmented(all, Step(1)), ReadAugmented(all, Step(1)));
  EXPECT_NE(ReadAugmented(all, Step(1)), ReadAugmented(all, Step(2)));
}

TEST(AugmentedImagesTest, TheChangesDependOnTheImageAndOnTheSeed) {
  v1::Augmentation brightness;
  brightness.set_brightness(0.4);
  const std::shared_ptr<const ImageSource> two = EqualImages(3, 2);
  for (const bool bytes : {true, false}) {
    const AugmentedImages images(bytes ? two : std::make_shared<FloatImages>(two), brightness);
    ASSERT_EQ(images.has_bytes(), bytes);
    const std::vector<float> first = ReadOf(images, Step(1), 0);
    EXPECT_NE(ReadOf(images, Step(1), 1), first) << bytes;
    EXPECT_NE(ReadOf(images, {/*training=*/true, /*seed=*/4, /*step=*/1}, 0), first) << bytes;
  }
}

TEST(AugmentedImagesTest, ImagesAreMirroredWithTheGivenProbability) {
  const std::vector<float> plain = ReadOf(*OneImage(3), {});
  std::vector<float> mirrored;
  for (int64_t line = 0; line < kHeight; ++line) {
    for (int64_t x = kWidth - 1; x >= 0; --x) {
      const auto pixel = plain.begin() + (line * kWidth + x) * 3;
      mirrored.insert(mirrored.end(), pixel, pixel + 3);
    }
  }
  v1::Augmentation augmentation;
  augmentation.set_mirror(0.25);
  int count = 0;
  for (uint64_t step = 0; step < 1000; ++step) {
    const std::vector<float> read = ReadAugmented(augmentation, Step(step));
    if (read == mirrored) {
      ++count;
    } else {
      EXPECT_EQ(read, plain);
    }
  }
  EXPECT_NEAR(count, 250, 50);
  augmentation.set_mirror(1);
  EXPECT_EQ(ReadAugmented(augmentation, Step(1)), mirrored);
}

TEST(AugmentedImagesTest, ShiftsGoEverywhereAndBringInZeros) {
  const std::vector<float> plain = ReadOf(*OneImage(1), {});
  std::set<std::vector<float>> expected;
  for (int64_t right = -1; right <= 1; ++right) {
    for (int64_t down = -1; down <= 1; ++down) {
      std::vector<float> shifted;
      for (int64_t y = 0; y < kHeight; ++y) {
        for (int64_t x = 0; x < kWidth; ++x) {
          const int64_t from_x = x - right, from_y = y - down;
          const bool inside = from_x >= 0 && from_x < kWidth && from_y >= 0 && from_y < kHeight;
          shifted.push_back(inside ? plain[static_cast<size_t>(from_y * kWidth + from_x)] : 0);
        }
      }
      expected.insert(shifted);
    }
  }
  v1::Augmentation augmentation;
  augmentation.set_shift(1);
  std::set<std::vector<float>> seen;
  for (uint64_t step = 0; step < 200; ++step) {
    seen.insert(ReadAugmented(augmentation, Step(step), /*channels=*/1));
  }
  EXPECT_EQ(seen, expected);
}

TEST(AugmentedImagesTest, AShiftByMoreThanTheImageLeavesNothing) {
  v1::Augmentation augmentation;
  augmentation.set_shift(1000);
  EXPECT_EQ(ReadAugmented(augmentation, Step(1)), std::vector<float>(3 * kWidth * kHeight, 0));
}

TEST(AugmentedImagesTest, BrightnessMultipliesAllPixelsByOneFactor) {
  const std::vector<float> plain = ReadOf(*OneImage(3), {});
  v1::Augmentation augmentation;
  augmentation.set_brightness(0.5);
  float least = 2, largest = 0;
  for (uint64_t step = 0; step < 200; ++step) {
    const std::vector<float> read = ReadAugmented(augmentation, Step(step));
    const float factor = read[1] / plain[1];
    least = std::min(least, factor);
    largest = std::max(largest, factor);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(read[i], std::min(1.0f, factor * plain[i]), 1e-5);
    }
  }
  EXPECT_NEAR(least, 0.5, 0.03);
  EXPECT_NEAR(largest, 1.5, 0.03);
}

TEST(AugmentedImagesTest, ContrastSpreadsPixelsAroundTheMeanLuminance) {
  const std::vector<float> plain = ReadOf(*OneImage(3), {});
  double mean = 0;
  for (size_t pixel = 0; pixel < kWidth * kHeight; ++pixel) mean += Luminance(plain, pixel);
  mean /= kWidth * kHeight;
  v1::Augmentation augmentation;
  augmentation.set_contrast(0.3);
  for (uint64_t step = 0; step < 20; ++step) {
    const std::vector<float> read = ReadAugmented(augmentation, Step(step));
    // A pixel that stays within 0 and 1.
    const double factor = (read[30] - mean) / (plain[30] - mean);
    EXPECT_GE(factor, 0.7 - 1e-4);
    EXPECT_LE(factor, 1.3 + 1e-4);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(read[i], std::clamp(mean + factor * (plain[i] - mean), 0.0, 1.0), 1e-4);
    }
  }
}

TEST(AugmentedImagesTest, SaturationSpreadsColoursAroundTheirOwnLuminance) {
  const std::vector<float> plain = ReadOf(*OneImage(3), {});
  v1::Augmentation augmentation;
  augmentation.set_saturation(0.1);
  for (uint64_t step = 0; step < 20; ++step) {
    const std::vector<float> read = ReadAugmented(augmentation, Step(step));
    // A pixel that stays within 0 and 1.
    const float factor = (read[18] - Luminance(plain, 6)) / (plain[18] - Luminance(plain, 6));
    EXPECT_NE(factor, 1);
    for (size_t i = 0; i < plain.size(); ++i) {
      const float grey = Luminance(plain, i / 3);
      EXPECT_NEAR(read[i], std::clamp(grey + factor * (plain[i] - grey), 0.0f, 1.0f), 1e-4);
    }
  }
}

TEST(AugmentedImagesTest, ImagesOfBytesChangeAsTheirNumbersDo) {
  v1::Augmentation all;
  all.set_mirror(0.5);
  all.set_shift(1);
  all.set_brightness(0.4);
  all.set_contrast(0.4);
  all.set_saturation(0.4);
  const AugmentedImages images(OneImage(3), all);
  EXPECT_TRUE(images.has_bytes());
  for (uint64_t step = 0; step < 20; ++step) {
    const std::vector<float> numbers = ReadAugmented(all, Step(step));
    std::vector<unsigned char> bytes(numbers.size());
    SYNCGRADS_ASSERT_OK(images.ReadBytes(0, Step(step), absl::MakeSpan(bytes)));
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_NEAR(bytes[i], 255 * numbers[i], 0.5 + 1e-3) << step << " " << i;
    }
    const std::vector<float> read = ReadOf(images, Step(step));
    EXPECT_EQ(read[5], FromByte(bytes[5]));
  }
}

}  // namespace
}  // namespace syncgrads
