// Generated tables, for examples and tests.

#ifndef SYNCGRADS_WORKER_DATA_READERS_GENERATED_H_
#define SYNCGRADS_WORKER_DATA_READERS_GENERATED_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/readers/table.h"
#include "worker/data/readers/table_reader.h"

namespace syncgrads {

// Generates the rows with these numbers of the table of points that GeneratedSource in
// proto/job.proto describes. A row is a function of `seed` and its number.
//
// InvalidArgument if `columns` names a column other than x, y and above, or if the target must
// be a class and is not above.
absl::StatusOr<Table> GeneratePoints(uint64_t seed, absl::Span<const size_t> rows,
                                     const TableColumns& columns);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_GENERATED_H_
