// Tables that the program makes up.

#ifndef SYNCGRADS_WORKER_DATA_GENERATED_H_
#define SYNCGRADS_WORKER_DATA_GENERATED_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/table.h"
#include "worker/data/table_reader.h"

namespace syncgrads {

// Rows `begin` to below `end` of the table of points that GeneratedSource in
// proto/job.proto describes. A row depends on `seed` and its number alone.
//
// InvalidArgument if `columns` names one that is not x, y or above.
absl::StatusOr<Table> GeneratePoints(uint64_t seed, size_t begin, size_t end,
                                     const TableColumns& columns);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_GENERATED_H_
