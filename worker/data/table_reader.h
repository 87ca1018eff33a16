// Tables from delimited text files.

#ifndef SYNCGRADS_WORKER_DATA_TABLE_READER_H_
#define SYNCGRADS_WORKER_DATA_TABLE_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/rows.h"
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

// Reads all rows.
//
// Errors:
//   InvalidArgument  as NextRow's; a column that the header does not have (names
//                    those it has); no feature left; or "PATH:LINE: column "NAME":
//                    what is wrong with the cell": it is empty, or not a finite
//                    number
absl::StatusOr<Table> ParseTable(Rows& rows, const TableColumns& columns);

// Errors: as DelimitedReader and ParseTable, and as ReadDecompressed if the file
// cannot be read.
absl::StatusOr<Table> ReadTable(const Storage& storage, const std::string& path, char delimiter,
                                const TableColumns& columns);

struct TableFile {
  std::string path;
  char delimiter = ',';
  // The column that says which rows belong together.
  std::string id;
};

// The rows of the first of `files` with those of the others, by ID, which is no
// feature. Errors: as JoinedRows, ParseTable and ReadTable.
absl::StatusOr<Table> ReadJoinedTable(const Storage& storage, absl::Span<const TableFile> files,
                                      const TableColumns& columns);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_TABLE_READER_H_
