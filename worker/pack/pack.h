// Packs JPEG images into tar archives.

#ifndef SYNCGRADS_WORKER_PACK_PACK_H_
#define SYNCGRADS_WORKER_PACK_PACK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace syncgrads {

// An image to pack.
struct ImageToPack {
  std::string file;
  uint32_t label = 0;
};

// The images to pack, and the name of each class, by number.
struct ImagesToPack {
  std::vector<ImageToPack> images;
  std::vector<std::string> classes;
};

// Lists the images of a folder with a subfolder for each class, sorted by name: the classes are the
// subfolders' numbers, and the images are their files *.jpg and *.jpeg (in any case).
//
// Errors: NotFound if the folder does not exist, or has no image.
absl::StatusOr<ImagesToPack> ListFolder(const std::string& folder);

// Lists the images of a part of ImageNet, TRAIN or VALIDATION. Errors: those of ListImageNet.
absl::StatusOr<ImagesToPack> ListImageNetFolder(const std::string& folder,
                                                v1::ImageNetSource::Part part);

struct PackOptions {
  // The directory of the archives; it must exist.
  std::string output;
  // The archives are PREFIX-0000.tar, PREFIX-0001.tar, and so on.
  std::string prefix = "part";
  // Not 0.
  size_t images_per_tar = 10'000;
  // The order of the images is a function of the seed, so that each archive has a sample of all.
  uint64_t seed = 1;
};

// Packs the images: into archives, each with an index, and the names of the classes into
// LOC_synset_mapping.txt. An archive appears under its name when it is complete. Returns the
// pattern of the archives' names for a job file.
//
// Errors:
//   InvalidArgument  there is no image
//   others           those of reading an image or of writing a file, which they name
absl::StatusOr<std::string> Pack(ImagesToPack images, const PackOptions& options);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_PACK_PACK_H_
