// IDX files, the format of MNIST and similar data sets.
//
// A file consists of two zero bytes; one byte for the type of the numbers (8: unsigned bytes);
// one byte for the number of dimensions; the size of each dimension in 4 bytes, big-endian; and
// the numbers, the last dimension varying fastest.

#ifndef SYNCGRADS_WORKER_DATA_READERS_IDX_READER_H_
#define SYNCGRADS_WORKER_DATA_READERS_IDX_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Reads a row for each image in the file `images` (dimensions: image, line, column), with its
// label from the file `labels`. If the kind is kNone, labels are not read. Files with names that
// end in .gz are decompressed.
//
// Errors:
//   DataLoss         a file is not an IDX file of bytes with that number of dimensions, its
//                    images are empty, its length is not what its header requires (names both
//                    lengths), or it has no images, but a size of more than 2^20 pixels for each
//   InvalidArgument  the number of labels is not the number of images (names both)
//   others           those of ReadDecompressed
absl::StatusOr<Table> ReadIdx(const Storage& storage, const std::string& images,
                              const std::string& labels, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_IDX_READER_H_
