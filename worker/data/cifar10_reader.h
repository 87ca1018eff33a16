// CIFAR-10's binary files: records of 3073 bytes, a label from 0 to 9 and an image
// of 3x32x32 numbers, red before green before blue.

#ifndef SYNCGRADS_WORKER_DATA_CIFAR10_READER_H_
#define SYNCGRADS_WORKER_DATA_CIFAR10_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// The rows of all `files`, one file after the other.
//
// Errors:
//   DataLoss  a file's length is no multiple of a record's (with both), or a label
//             is out of range (with its record)
//   others    as ReadDecompressed
absl::StatusOr<Table> ReadCifar10(const Storage& storage, const std::vector<std::string>& files,
                                  TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_CIFAR10_READER_H_
