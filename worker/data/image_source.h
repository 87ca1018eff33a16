// Images that are read when they are needed.

#ifndef SYNCGRADS_WORKER_DATA_IMAGE_SOURCE_H_
#define SYNCGRADS_WORKER_DATA_IMAGE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/nn/shape.h"

namespace syncgrads {

// What an image is read for. Random changes to it are a function of the seed, the
// step and the image.
struct ImageUse {
  bool training = false;
  uint64_t seed = 0;
  uint64_t step = 0;
};

// Thread-safe.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual const Shape& shape() const = 0;
  // What errors call the image: its file, and where in it.
  virtual std::string NameOf(size_t image) const = 0;
  // Sets `pixels`, which are as shape() says, to numbers from 0 to 1.
  //
  // Errors:
  //   DataLoss  the image is damaged; names it
  //   others    as ReadFile
  virtual absl::Status Read(size_t image, const ImageUse& use, absl::Span<float> pixels) const = 0;
  // Whether it takes so long that images should be read ahead.
  virtual bool is_slow() const = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGE_SOURCE_H_
