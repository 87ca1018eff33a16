// IDX files, in which MNIST and its relatives come.
//
// A file is: two zero bytes; a byte for the type of the numbers, 8 for unsigned
// bytes; a byte for how many dimensions there are; each dimension's size in 4
// bytes, big-endian; the numbers, the last dimension fastest.

#ifndef SYNCGRADS_WORKER_DATA_IDX_READER_H_
#define SYNCGRADS_WORKER_DATA_IDX_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// A row for each image of the file `images` (number of images, height, width), with
// its label from the file `labels` unless the kind is kNone. Names that end in .gz
// are decompressed.
//
// Errors:
//   DataLoss         a file is no IDX file of bytes with so many dimensions, or not
//                    as long as it says (with both)
//   InvalidArgument  there are not as many labels as images (with both)
//   others           as ReadDecompressed
absl::StatusOr<Table> ReadIdx(const Storage& storage, const std::string& images,
                              const std::string& labels, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_IDX_READER_H_
