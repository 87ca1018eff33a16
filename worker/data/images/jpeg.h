// Decodes JPEG images to the size that a model takes.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_JPEG_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_JPEG_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/images/crop.h"

namespace syncgrads {

// Decodes an image to `pixels`: 3 x size x size bytes, laid out as Shape describes.
// The square is that of `crop_of`, which is called with the width and height of the image.
//
// Only the part that the crop needs is decoded, at the smallest of the scales 1, 1/2, 1/4 and 1/8
// that is not enlarged afterwards (by more than a hundredth). The rest of the scaling is linear
// interpolation, rounded to the nearest byte. Grey images get three equal channels. Images with
// cyan, magenta, yellow and black are converted without a colour profile.
//
// Thread-safe.
//
// Errors:
//   DataLoss  the bytes are not a JPEG image, are damaged or cut short before the end of what
//             the crop needs, have a side above 32768 pixels, or are progressive and take more
//             than 256 MiB to decode; names the problem, with libjpeg's message for the first three
absl::Status DecodeJpeg(absl::string_view bytes, int64_t size,
                        absl::FunctionRef<Crop(int width, int height)> crop_of,
                        absl::Span<unsigned char> pixels);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_JPEG_H_
