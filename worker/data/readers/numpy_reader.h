// NumPy's .npy files, versions 1 to 3.
//
// A file consists of "\x93NUMPY"; two bytes of version; the length of the header, little-endian,
// in 2 bytes or, from version 2 on, in 4; the header; and the numbers. An example of a header is
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }

#ifndef SYNCGRADS_WORKER_DATA_READERS_NUMPY_READER_H_
#define SYNCGRADS_WORKER_DATA_READERS_NUMPY_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

struct NumpyArray {
  std::vector<uint64_t> shape;
  std::vector<double> numbers;  // the last dimension varies fastest
};

// Parses a little-endian array in C order of f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 or booleans.
// `path` is for errors. DataLoss if the file is something else, or its length is not what its
// header requires.
absl::StatusOr<NumpyArray> ParseNumpy(absl::string_view contents, const std::string& path);

// Reads a row for each index of the first dimension of the array in the file `features`. The
// elements of the other dimensions are its features x0, x1 and so on. Its target is in the
// one-dimensional array of the file `targets`, which is not read if the kind is kNone.
//
// Errors:
//   InvalidArgument  the features have fewer than two dimensions, the number of targets is not
//                    the number of rows (names both), a class is not a whole number from 0, or a
//                    number is not finite
//   DataLoss         the features have no rows, but more than 2^20 columns (names the shape)
//   others           those of ParseNumpy and ReadDecompressed
absl::StatusOr<Table> ReadNumpy(const Storage& storage, const std::string& features,
                                const std::string& targets, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_NUMPY_READER_H_
