// ImageNet, in the file layout of its localisation challenge:
//
//   LOC_synset_mapping.txt              "n01440764 tench, Tinca tinca": the number of the
//                                       line, from 0, is the class
//   LOC_train_solution.csv              ImageId,PredictionString: "WNID x1 y1 x2 y2"
//   LOC_val_solution.csv                for each object in the image
//   LOC_sample_submission.csv           ImageId,PredictionString: the second is not used
//   ILSVRC/Data/CLS-LOC/train/WNID/ID.JPEG
//   ILSVRC/Data/CLS-LOC/val/ID.JPEG
//   ILSVRC/Data/CLS-LOC/test/ID.JPEG
//
// or packed into tar archives (worker/data/readers/packed_images.h), with or without the mapping.

#ifndef SYNCGRADS_WORKER_DATA_READERS_IMAGENET_READER_H_
#define SYNCGRADS_WORKER_DATA_READERS_IMAGENET_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// The images of a part, without those with objects of several classes and, if `spec.classes` is not
// empty, those of other classes.
struct ImageNetList {
  // The path of each image, in the order of the CSV file.
  std::vector<std::string> files;
  // The class of each image; empty for the part TEST.
  std::vector<uint32_t> labels;
  // The line of each image in the CSV file, whose path is `table_path`.
  std::vector<size_t> lines;
  std::string table_path;
  // The WordNet id and the name of each class of the mapping.
  std::vector<std::string> wnids;
  std::vector<std::string> descriptions;
};

// Lists the images of the folder `spec.path`.
//
// Errors:
//   InvalidArgument  "FILE:LINE: ...": objects that do not have five parts each, a class that
//                    the mapping does not have or has twice, or an error of DelimitedReader; or
//                    the mapping lacks a class of `spec.classes`
//   others           those of Storage::Read
absl::StatusOr<ImageNetList> ListImageNet(const Storage& storage, const v1::ImageNetSource& spec);

// Reads a row for each image of ListImageNet, or of the archives `spec.tars`. The images themselves
// are read on demand. The rows of the part TEST have no targets.
//
// Errors:
//   FailedPrecondition  targets of the part TEST are requested
//   InvalidArgument     an image in an archive has no class, but targets are requested; or
//                       `spec.tars` is malformed
//   others              those of ListImageNet, ListPacked and Storage::Read
absl::StatusOr<Table> ReadImageNet(const std::shared_ptr<const Storage>& storage,
                                   const v1::ImageNetSource& spec, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_IMAGENET_READER_H_
