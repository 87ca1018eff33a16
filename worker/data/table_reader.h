// Tables from delimited text files.

#ifndef SYNCGRADS_WORKER_DATA_TABLE_READER_H_
#define SYNCGRADS_WORKER_DATA_TABLE_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// What to read of a file.
struct TableColumns {
  // Empty: every column but the target.
  std::vector<std::string> features;
  std::string target;
  // With kNone, the file need not have the column.
  TargetKind target_kind = TargetKind::kNone;
  // Read with the target. Empty: none.
  std::string weight;
};

// Reads the contents of the file `path`.
//
// Errors:
//   InvalidArgument  as DelimitedReader's; a column that the header does not have
//                    (names those it has); no feature left; or "PATH:LINE: column
//                    "NAME": what is wrong with the cell": it is empty, or not a
//                    finite number
absl::StatusOr<Table> ParseTable(absl::string_view text, const std::string& path, char delimiter,
                                 const TableColumns& columns);

// Errors: as ParseTable, and as ReadDecompressed if the file cannot be read.
absl::StatusOr<Table> ReadTable(const Storage& storage, const std::string& path, char delimiter,
                                const TableColumns& columns);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_TABLE_READER_H_
