// Reads tables from delimited text files.

#ifndef SYNCGRADS_WORKER_DATA_READERS_TABLE_READER_H_
#define SYNCGRADS_WORKER_DATA_READERS_TABLE_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/readers/rows.h"
#include "worker/data/readers/table.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// The columns to read from a file.
struct TableColumns {
  // Empty: every column except the targets and the weight.
  std::vector<std::string> features;
  std::string target;
  // If kNone, the file need not have the target column.
  TargetKind target_kind = TargetKind::kNone;
  // The weight column, which is read if targets are. Empty: none.
  std::string weight;
  // Further columns of numbers, which follow the target in each row's targets. Only with kNumber.
  std::vector<std::string> more_targets;
};

// Reads all rows.
//
// Errors:
//   InvalidArgument  those of NextRow; a column that the header does not have (names the columns
//                    of the header); no column left for features; or "PATH:LINE: column "NAME":
//                    what is wrong with the cell": it is empty, or not a finite number
absl::StatusOr<Table> ParseTable(Rows& rows, const TableColumns& columns);

// Reads the table in one file. Errors: those of DelimitedReader, ParseTable and
// ReadDecompressed.
absl::StatusOr<Table> ReadTable(const Storage& storage, const std::string& path, char delimiter,
                                const TableColumns& columns);

struct TableFile {
  std::string path;
  char delimiter = ',';
  // The ID column, by which tables are joined.
  std::string id;
};

// Reads the first of `files`, joined with the others by ID. The ID is not a feature. Errors:
// those of JoinedRows, ParseTable and ReadTable.
absl::StatusOr<Table> ReadJoinedTable(const Storage& storage, absl::Span<const TableFile> files,
                                      const TableColumns& columns);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_TABLE_READER_H_
