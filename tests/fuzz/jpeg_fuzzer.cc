// Decodes arbitrary bytes as a JPEG image. The pixels of an image that is accepted are numbers from
// 0 to 1.

#include <turbojpeg.h>

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "worker/data/jpeg.h"

namespace syncgrads::fuzz {
namespace {

constexpr int64_t kSide = 16;

std::string Jpeg(int width, int height, int format, int sampling) {
  std::vector<unsigned char> pixels;
  for (int i = 0; i < 3 * width * height; ++i) pixels.push_back(static_cast<uint8_t>(i * 37));
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
  JpegCrop crop;
  crop.smallest_side = kSide + choices.Byte() % 16;
  crop.size = kSide;
  crop.left = choices.Byte() / 255.0;
  crop.top = choices.Byte() / 255.0;
  crop.mirrored = choices.Byte() % 2 == 1;
  std::vector<float> pixels(3 * kSide * kSide, -1);
  const absl::Status decoded = DecodeJpeg(choices.Rest(), crop, absl::MakeSpan(pixels));
  RequireExplained(decoded);
  if (!decoded.ok()) return;
  // Interpolation may exceed 1 by a rounding error.
  for (const float pixel : pixels) Require(pixel >= 0 && pixel < 1.001f, "a pixel is in range");
}

std::vector<std::string> Seeds() {
  return {
      Encoded(0x01800000, 4) + Jpeg(24, 40, TJPF_RGB, TJSAMP_420),
      Encoded(0x00ff8004, 4) + Jpeg(17, 16, TJPF_RGB, TJSAMP_444),
      Encoded(0x01008008, 4) + Jpeg(150, 33, TJPF_GRAY, TJSAMP_GRAY),
  };
}

}  // namespace syncgrads::fuzz
