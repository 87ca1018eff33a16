// Tables whose rows belong together by an ID.

#ifndef SYNCGRADS_WORKER_DATA_JOINED_ROWS_H_
#define SYNCGRADS_WORKER_DATA_JOINED_ROWS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/delimited.h"
#include "worker/data/rows.h"

namespace syncgrads {

// One of the tables.
struct RowsWithId {
  DelimitedReader rows;
  // The column with the ID, a text that each row has once.
  std::string id;
};

// The rows of the first table, in its order, each with the cells that the others
// have under the same ID. The header is the tables' columns in turn, without the
// IDs. Rows of the others whose ID the first does not have are left out.
class JoinedRows : public Rows {
 public:
  // `tables`: at least one; the first is the master.
  //
  // Errors:
  //   InvalidArgument  a table has no column for the ID, or an ID twice (with both
  //                    lines); two tables have a column of one name; as NextRow of
  //                    the tables
  static absl::StatusOr<JoinedRows> Create(std::vector<RowsWithId> tables);

  const std::vector<std::string>& header() const override { return header_; }
  std::string HeaderPlace() const override { return master_.rows.HeaderPlace(); }
  std::string PlaceOf(size_t column) const override;

  // InvalidArgument: also if a table does not have the row's ID; names both
  absl::StatusOr<bool> NextRow(std::vector<std::string>& cells) override;

 private:
  struct Row {
    std::string place;
    std::vector<std::string> cells;  // without the ID
  };
  // A table that is looked up in.
  struct Others {
    std::string path;
    size_t first_column = 0;  // in the joined header
    std::map<std::string, Row> rows;
    // The row that belongs to the one read last.
    const Row* found = nullptr;
  };

  JoinedRows(RowsWithId master, size_t id_column)
      : master_(std::move(master)), id_column_(id_column) {}

  absl::Status Add(RowsWithId table);

  RowsWithId master_;
  size_t id_column_;
  std::vector<Others> others_;
  std::vector<std::string> header_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_JOINED_ROWS_H_
