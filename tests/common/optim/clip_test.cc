#include "common/optim/clip.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

template <typename T>
MutableTensor ViewOf(std::vector<T>& values) {
  return {DTypeOf<T>::value, reinterpret_cast<std::byte*>(values.data()), values.size()};
}

TEST(ClipTest, IsTheWorkedExample) {
  // The norm |(3, 4), (12)| is 13.
  std::vector<float> a = {3, -4};
  std::vector<double> b = {12};
  EXPECT_EQ(GlobalNorm({ViewOf(a), ViewOf(b)}), 13);
  EXPECT_EQ(ClipToNorm({ViewOf(a), ViewOf(b)}, 6.5), 13);
  EXPECT_EQ(a, (std::vector<float>{1.5, -2}));
  EXPECT_EQ(b, (std::vector<double>{6}));
}

TEST(ClipTest, LeavesWhatIsShortEnough) {
  std::vector<float> a = {3, 4};
  EXPECT_EQ(ClipToNorm({ViewOf(a)}, 5), 5);
  EXPECT_EQ(a, (std::vector<float>{3, 4}));
  EXPECT_EQ(ClipToNorm({}, 5), 0);
}

TEST(ClipTest, LeavesWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> a = {3, infinity};
  EXPECT_EQ(ClipToNorm({ViewOf(a)}, 1), infinity);
  EXPECT_EQ(a, (std::vector<float>{3, infinity}));
}

TEST(ClipTest, HasTheSameBitsOnEveryTarget) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::vector<float>> tensors(3);
  for (size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].resize(1001 * (t + 1));
    for (float& value : tensors[t]) value = normal(random);
  }
  std::vector<std::vector<float>> want;
  OnEveryTarget([&] {
    std::vector<std::vector<float>> got = tensors;
    ClipToNorm({ViewOf(got[0]), ViewOf(got[1]), ViewOf(got[2])}, 1);
    if (want.empty()) want = got;
    EXPECT_EQ(got, want);
    // The norm is over 6006 elements, each rounded by half an epsilon.
    EXPECT_NEAR(GlobalNorm({ViewOf(got[0]), ViewOf(got[1]), ViewOf(got[2])}), 1, 1e-6);
  });
}

}  // namespace
}  // namespace syncgrads
