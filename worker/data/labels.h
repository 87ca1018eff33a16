// Labels that are whole numbers, as a table's target.

#ifndef SYNCGRADS_WORKER_DATA_LABELS_H_
#define SYNCGRADS_WORKER_DATA_LABELS_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/data/table.h"

namespace syncgrads {

// Sets `table`'s target, of a row for each of `labels`. `place` says where a row's
// label is. `target_kind` is not kNone.
void SetLabels(absl::Span<const uint32_t> labels, TargetKind target_kind,
               absl::FunctionRef<std::string(size_t row)> place, Table& table);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_LABELS_H_
