// Tables that are joined by an ID.

#ifndef SYNCGRADS_WORKER_DATA_READERS_JOINED_ROWS_H_
#define SYNCGRADS_WORKER_DATA_READERS_JOINED_ROWS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/readers/delimited.h"
#include "worker/data/readers/rows.h"

namespace syncgrads {

// One of the tables to join.
struct RowsWithId {
  DelimitedReader rows;
  // The name of the ID column. An ID is any text; no two rows of a table have the same ID.
  std::string id;
};

// The rows of the first table (the master), in its order, each with the cells of the other
// tables' rows that have the same ID. The header consists of the columns of all tables, in their
// order, without the ID columns. Rows of other tables with IDs that the master does not have are
// left out.
class JoinedRows : public Rows {
 public:
  // `tables` has at least one element; the first is the master.
  //
  // Errors:
  //   InvalidArgument  a table has no ID column, or a table other than the master has an ID
  //                    twice (names both places), or two tables have columns of one name
  //   others           those of NextRow of the tables
  static absl::StatusOr<JoinedRows> Create(std::vector<RowsWithId> tables);

  const std::vector<std::string>& header() const override { return header_; }
  std::string HeaderPlace() const override { return master_.rows.HeaderPlace(); }
  std::string PlaceOf(size_t column) const override;

  // Reads the next row of the master, joined with the others. InvalidArgument also if an earlier
  // row has the same ID (names both places), or if another table lacks the ID (names the table).
  absl::StatusOr<bool> NextRow(std::vector<std::string>& cells) override;

 private:
  struct Row {
    std::string place;
    std::vector<std::string> cells;  // without the ID
  };
  // A table other than the master, by ID.
  struct Others {
    std::string path;
    size_t first_column = 0;  // index in the joined header
    std::map<std::string, Row> rows;
    // The row that was joined to the row read last.
    const Row* found = nullptr;
  };

  JoinedRows(RowsWithId master, size_t id_column)
      : master_(std::move(master)), id_column_(id_column) {}

  absl::Status Add(RowsWithId table);

  RowsWithId master_;
  size_t id_column_;
  // Where the master has each ID of the rows so far.
  std::map<std::string, std::string> places_;
  std::vector<Others> others_;
  std::vector<std::string> header_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_JOINED_ROWS_H_
