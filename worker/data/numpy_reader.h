// NumPy's .npy files, versions 1 to 3: "\x93NUMPY", two bytes of version, the
// length of the header (2 bytes, from version 2 on 4; little-endian), the header,
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }, and the numbers.

#ifndef SYNCGRADS_WORKER_DATA_NUMPY_READER_H_
#define SYNCGRADS_WORKER_DATA_NUMPY_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

struct NumpyArray {
  std::vector<uint64_t> shape;
  std::vector<double> numbers;  // the last dimension fastest
};

// Arrays of f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 and booleans, little-endian and
// in C's order. `path` is for errors. DataLoss if it is something else or not as
// long as it says.
absl::StatusOr<NumpyArray> ParseNumpy(absl::string_view contents, const std::string& path);

// A row for each index of the first dimension of the file `features`; the others
// are its features x0, x1, ... . Its target is in the one-dimensional array of the
// file `targets`, unless the kind is kNone.
//
// Errors:
//   InvalidArgument  there are not as many targets as rows (with both); a class
//                    that is no whole number from 0; a number that is not finite
//   others           as ParseNumpy and ReadDecompressed
absl::StatusOr<Table> ReadNumpy(const Storage& storage, const std::string& features,
                                const std::string& targets, TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_NUMPY_READER_H_
