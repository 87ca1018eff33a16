// Converts integer labels to a table's targets.

#ifndef SYNCGRADS_WORKER_DATA_READERS_LABELS_H_
#define SYNCGRADS_WORKER_DATA_READERS_LABELS_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/data/readers/table.h"

namespace syncgrads {

// Sets the targets of `table`, which has a row for each of `labels`. `place` returns the place
// of a row's label. `target_kind` must not be kNone.
void SetLabels(absl::Span<const uint32_t> labels, TargetKind target_kind,
               absl::FunctionRef<std::string(size_t row)> place, Table& table);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_LABELS_H_
