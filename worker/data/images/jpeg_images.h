// Images in JPEG files.

#ifndef SYNCGRADS_WORKER_DATA_IMAGES_JPEG_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_IMAGES_JPEG_IMAGES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/images/image_source.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// How JPEG images become squares of one size. All numbers are given: 0 is not a default.
struct JpegCrops {
  // See ScaledCrop.
  int64_t smallest_side = 0;
  int64_t size = 0;
  v1::ImageNetSource::TrainingCrop training = v1::ImageNetSource::RANDOM_POSITION;
  // See DrawResizedCrop.
  double min_area = 0;
};

// Where the bytes of an image are.
struct ImagePlace {
  std::string name;
  // Index in the list of files.
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Reads JPEG images of any size as squares of one size: scaled and cropped, at the centre except in
// training. Immutable, so thread-safe.
class JpegImages : public ByteImageSource {
 public:
  // Each file is an image.
  JpegImages(std::shared_ptr<const Storage> storage, std::vector<std::string> files,
             const JpegCrops& crops)
      : JpegImages(std::move(storage), std::move(files), {}, crops) {}
  // The images are parts of the files.
  JpegImages(std::shared_ptr<const Storage> storage, std::vector<std::string> files,
             std::vector<ImagePlace> places, const JpegCrops& crops)
      : storage_(std::move(storage)),
        files_(std::move(files)),
        places_(std::move(places)),
        crops_(crops),
        shape_(Shape::Image(3, crops.size, crops.size)) {}

  const Shape& shape() const override { return shape_; }
  // "PATH", or "ARCHIVE: NAME".
  std::string NameOf(size_t image) const override;
  absl::Status ReadBytes(size_t image, const ImageUse& use,
                         absl::Span<unsigned char> pixels) const override;
  bool is_slow() const override { return true; }

 private:
  // Returns the file of an image, or its part of a file.
  absl::StatusOr<std::string> ReadFile(size_t image) const;

  const std::shared_ptr<const Storage> storage_;
  const std::vector<std::string> files_;
  // Empty if each file is an image.
  const std::vector<ImagePlace> places_;
  const JpegCrops crops_;
  const Shape shape_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGES_JPEG_IMAGES_H_
