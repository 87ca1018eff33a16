// JPEG images as a model takes them.

#ifndef SYNCGRADS_WORKER_DATA_JPEG_H_
#define SYNCGRADS_WORKER_DATA_JPEG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// What becomes of an image of any size.
struct JpegCrop {
  // The image is scaled so that its smaller side has so many pixels...
  int64_t smallest_side = 256;
  // ... and a square of so many is cut out: at most smallest_side.
  int64_t size = 224;
  // Where, from 0 (left, top) to 1 (right, bottom) of what there is to choose.
  double left = 0.5;
  double top = 0.5;
  // Whether left and right change places.
  bool mirrored = false;
};

// Sets `pixels`, 3 x size x size as Shape says, to numbers from 0 to 1. Of the image
// only what the crop needs is decoded, at the smallest of the scales 1, 1/2, 1/4 and
// 1/8 that still has smallest_side pixels, and scaled the rest of the way linearly.
// Grey images get three equal channels.
//
// Thread-safe.
//
// Errors:
//   DataLoss  it is no JPEG, or damaged, or cut short, before the end of what the
//             crop needs; in the decoder's words
absl::Status DecodeJpeg(absl::string_view bytes, const JpegCrop& crop, absl::Span<float> pixels);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JPEG_H_
