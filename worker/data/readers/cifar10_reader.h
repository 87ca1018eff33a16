// CIFAR-10's binary files. A record has 3073 bytes: a label from 0 to 9, and a 3x32x32 image,
// red before green before blue.

#ifndef SYNCGRADS_WORKER_DATA_READERS_CIFAR10_READER_H_
#define SYNCGRADS_WORKER_DATA_READERS_CIFAR10_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Reads the rows of all `files`, in order.
//
// Errors:
//   DataLoss  the length of a file is not a multiple of a record's (names both), or a label is
//             out of range (names the record)
//   others    those of ReadDecompressed
absl::StatusOr<Table> ReadCifar10(const Storage& storage, const std::vector<std::string>& files,
                                  TargetKind target_kind);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_CIFAR10_READER_H_
