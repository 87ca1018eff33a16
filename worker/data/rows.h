// Rows of cells under a header.

#ifndef SYNCGRADS_WORKER_DATA_ROWS_H_
#define SYNCGRADS_WORKER_DATA_ROWS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncgrads {

// Read one after the other. Not thread-safe.
class Rows {
 public:
  virtual ~Rows() = default;

  // The columns' names, each of them once.
  virtual const std::vector<std::string>& header() const = 0;
  // What errors call the header, and the cell in `column` of the row that was read
  // last: "PATH:LINE".
  virtual std::string HeaderPlace() const = 0;
  virtual std::string PlaceOf(size_t column) const = 0;

  // Reads the next row into `cells`, as many as the header has. Returns false when
  // there is none. InvalidArgument, with its place, for a row that is none.
  virtual absl::StatusOr<bool> NextRow(std::vector<std::string>& cells) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_ROWS_H_
