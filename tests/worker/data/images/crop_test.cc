// Which part of an image a model gets.

#include "worker/data/images/crop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

// The rectangle of an image that a crop shows, in pixels of the image.
struct Rectangle {
  double left, top, width, height;
};

Rectangle ShownBy(const Crop& crop, int width, int height, int64_t size) {
  const double across = width / crop.width;
  const double down = height / crop.height;
  const auto side = static_cast<double>(size);
  return {crop.left * across, crop.top * down, side * across, side * down};
}

TEST(ScaledCropTest, TheShorterSideHasTheSizeThatIsGiven) {
  const Crop crop = ScaledCrop{64, 32, 0.5, 1}(300, 200);
  EXPECT_EQ(crop.width, 96);
  EXPECT_EQ(crop.height, 64);
  EXPECT_EQ(crop.left, 32);
  EXPECT_EQ(crop.top, 32);
}

TEST(ResizedCropTest, RectanglesHaveRandomAreasRatiosAndPositionsWithinTheImage) {
  constexpr int kWidth = 500, kHeight = 375;
  RandomStream random(1, {});
  double least_area = 1, largest_area = 0, least_ratio = 2, largest_ratio = 0, sum_of_areas = 0;
  double leftmost = kWidth, rightmost = 0, topmost = kHeight, bottommost = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    const Rectangle shown =
        ShownBy(DrawResizedCrop(kWidth, kHeight, 224, 0.08, random), kWidth, kHeight, 224);
    const double area = shown.width * shown.height / (kWidth * kHeight);
    const double ratio = shown.width / shown.height;
    least_area = std::min(least_area, area);
    largest_area = std::max(largest_area, area);
    sum_of_areas += area;
    least_ratio = std::min(least_ratio, ratio);
    largest_ratio = std::max(largest_ratio, ratio);
    leftmost = std::min(leftmost, shown.left);
    rightmost = std::max(rightmost, shown.left + shown.width);
    topmost = std::min(topmost, shown.top);
    bottommost = std::max(bottommost, shown.top + shown.height);
  }
  // Sides are whole pixels, which changes areas and ratios a little.
  EXPECT_NEAR(least_area, 0.08, 0.005);
  EXPECT_GT(largest_area, 0.97);
  EXPECT_LE(largest_area, 1);
  // A rectangle of ratio r fits if its share of the area is at most c = 3/4 r. The mean share of
  // those that fit is (E[c^2] - 0.08^2) / 2 / (E[c] - 0.08), where log r is uniform.
  EXPECT_NEAR(sum_of_areas / kDraws, 0.432, 0.02);
  EXPECT_NEAR(least_ratio, 0.75, 0.02);
  EXPECT_NEAR(largest_ratio, 4.0 / 3, 0.03);
  EXPECT_NEAR(leftmost, 0, 1e-9);
  EXPECT_NEAR(rightmost, kWidth, 1e-9);
  EXPECT_NEAR(topmost, 0, 1e-9);
  EXPECT_NEAR(bottommost, kHeight, 1e-9);
}

TEST(ResizedCropTest, TheLeastShareOfTheAreaIsTheOneThatIsGiven) {
  constexpr int kWidth = 400, kHeight = 300;
  for (const double min_area : {0.25, 0.5, 0.75}) {
    RandomStream random(1, {});
    double least_area = 1;
    for (int i = 0; i < 2000; ++i) {
      const Rectangle shown =
          ShownBy(DrawResizedCrop(kWidth, kHeight, 64, min_area, random), kWidth, kHeight, 64);
      least_area = std::min(least_area, shown.width * shown.height / (kWidth * kHeight));
    }
    EXPECT_NEAR(least_area, min_area, 0.01);
  }
}

TEST(ResizedCropTest, ALongImageGivesTheLargestRectangleAtItsCentre) {
  constexpr int kWidth = 1200, kHeight = 30;
  RandomStream random(1, {});
  // No rectangle with nine tenths of the area fits.
  const Rectangle shown =
      ShownBy(DrawResizedCrop(kWidth, kHeight, 16, 0.9, random), kWidth, kHeight, 16);
  EXPECT_NEAR(shown.width, 40, 1e-9);
  EXPECT_NEAR(shown.height, 30, 1e-9);
  EXPECT_NEAR(shown.left, 580, 1e-9);
  EXPECT_NEAR(shown.top, 0, 1e-9);
}

}  // namespace
}  // namespace syncgrads
