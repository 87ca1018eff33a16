// Decodes arbitrary bytes as a JPEG image.

#include <turbojpeg.h>

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "worker/data/images/crop.h"
#include "worker/data/images/jpeg.h"

namespace syncgrads::fuzz {
namespace {

constexpr int64_t kSide = 16;

std::string Jpeg(int width, int height, int format, int sampling) {
  std::vector<unsigned char> pixels;
  for (int i = 0; i < 4 * width * height; ++i) pixels.push_back(static_cast<uint8_t>(i * 37));
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const tjhandle handle = tjInitCompress();
  const int failed = tjCompress2(handle, pixels.data(), width, 0, height, format, &bytes, &size,
                                 sampling, 80, format == TJPF_GRAY ? 0 : TJFLAG_PROGRESSIVE);
  Require(failed == 0, "an image is compressed");
  const std::string image(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  return image;
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  ScaledCrop crop;
  crop.smallest_side = kSide + choices.Byte() % 16;
  crop.size = kSide;
  crop.left = choices.Byte() / 255.0;
  crop.top = choices.Byte() / 255.0;
  const bool resized = choices.Byte() % 2 == 1;
  RandomStream random(choices.Byte(), {});
  const auto crop_of = [&](int width, int height) {
    return resized ? DrawResizedCrop(width, height, kSide, /*min_area=*/0.08, random)
                   : crop(width, height);
  };
  std::vector<unsigned char> pixels(3 * kSide * kSide);
  RequireExplained(DecodeJpeg(choices.Rest(), kSide, crop_of, absl::MakeSpan(pixels)));
}

std::vector<std::string> Seeds() {
  return {
      Encoded(0x0100800000, 5) + Jpeg(24, 40, TJPF_RGB, TJSAMP_420),
      Encoded(0x0700ff8004, 5) + Jpeg(17, 16, TJPF_RGB, TJSAMP_444),
      Encoded(0x0101008008, 5) + Jpeg(150, 33, TJPF_GRAY, TJSAMP_GRAY),
      Encoded(0x0100008003, 5) + Jpeg(31, 20, TJPF_CMYK, TJSAMP_420),
  };
}

}  // namespace syncgrads::fuzz
