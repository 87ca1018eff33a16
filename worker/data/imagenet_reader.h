// ImageNet as its localisation challenge comes:
//
//   LOC_synset_mapping.txt              "n01440764 tench, Tinca tinca": a class is
//                                       the number of its line, from 0
//   LOC_train_solution.csv              ImageId,PredictionString: "WNID x1 y1 x2 y2"
//   LOC_val_solution.csv                for each object in the image
//   ILSVRC/Data/CLS-LOC/train/WNID/ID.JPEG
//   ILSVRC/Data/CLS-LOC/val/ID.JPEG

#ifndef SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_
#define SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// A row for each image of the folder `spec.path` whose objects are all of one class, and
// of `spec.classes` if there are any, in the order of the CSV file. Images are read
// when they are needed.
//
// Errors:
//   InvalidArgument  "FILE:LINE: ...": a row whose objects are not of five parts, or
//                    of a class that the mapping does not have; a class in
//                    `spec.classes` that it does not have; as DelimitedReader's
//   others           as Storage::Read
absl::StatusOr<Table> ReadImageNet(const std::shared_ptr<const Storage>& storage,
                                   const v1::ImageNetSource& spec, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IMAGENET_READER_H_
