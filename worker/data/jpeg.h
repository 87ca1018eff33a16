// Decodes JPEG images to the size that a model takes.

#ifndef SYNCGRADS_WORKER_DATA_JPEG_H_
#define SYNCGRADS_WORKER_DATA_JPEG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// How an image of any size is scaled and cropped.
struct JpegCrop {
  // The image is scaled so that its smaller side has this many pixels.
  int64_t smallest_side = 256;
  // The side of the square that is cropped, in pixels; at most smallest_side.
  int64_t size = 224;
  // The position of the square: from 0 (leftmost, topmost) to 1 (rightmost, bottommost).
  double left = 0.5;
  double top = 0.5;
  // Whether the square is mirrored, left to right.
  bool mirrored = false;
};

// Decodes an image to `pixels`: 3 x size x size numbers from 0 to 1, laid out as Shape
// describes. Only the part that the crop needs is decoded, at the smallest of the scales 1, 1/2,
// 1/4 and 1/8 at which the smaller side still has smallest_side pixels. The rest of the scaling
// is linear interpolation. Grey images get three equal channels.
//
// Thread-safe.
//
// Errors:
//   DataLoss  the bytes are not a JPEG image, are damaged or cut short before the end of what
//             the crop needs, or have a side above 32768 pixels; names the problem, with
//             libjpeg's message for the first three
absl::Status DecodeJpeg(absl::string_view bytes, const JpegCrop& crop, absl::Span<float> pixels);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JPEG_H_
