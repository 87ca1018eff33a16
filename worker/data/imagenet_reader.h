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

#ifndef SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_
#define SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Reads a row for each image in the folder `spec.path`, in the order of the CSV file. Leaves out
// images with objects of several classes and, if `spec.classes` is not empty, images of other
// classes. The images themselves are read on demand. The rows of the part TEST have no targets.
//
// Errors:
//   FailedPrecondition  targets of the part TEST are requested
//   InvalidArgument  "FILE:LINE: ...": objects that do not have five parts each, a class that
//                    the mapping does not have or has twice, or an error of DelimitedReader; or
//                    the mapping lacks a class of `spec.classes`
//   others           those of Storage::Read
absl::StatusOr<Table> ReadImageNet(const std::shared_ptr<const Storage>& storage,
                                   const v1::ImageNetSource& spec, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_
