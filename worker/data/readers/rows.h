// Rows of cells with a header.

#ifndef SYNCGRADS_WORKER_DATA_READERS_ROWS_H_
#define SYNCGRADS_WORKER_DATA_READERS_ROWS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncgrads {

// Rows that are read one after the other. Not thread-safe.
class Rows {
 public:
  virtual ~Rows() = default;

  // The names of the columns, all of them different.
  virtual const std::vector<std::string>& header() const = 0;
  // The place, as "PATH:LINE", that errors name for the header, and for the cell in `column` of
  // the row that was read last.
  virtual std::string HeaderPlace() const = 0;
  virtual std::string PlaceOf(size_t column) const = 0;

  // Reads the next row into `cells`, one for each column of the header. Returns false after the
  // last row. InvalidArgument, with its place, for a malformed row.
  virtual absl::StatusOr<bool> NextRow(std::vector<std::string>& cells) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_ROWS_H_
