// Rows of cells from a delimited text file with a header line (CSV, TSV).

#ifndef SYNCGRADS_WORKER_DATA_DELIMITED_H_
#define SYNCGRADS_WORKER_DATA_DELIMITED_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/rows.h"

namespace syncgrads {

// Lines end in "\n" or "\r\n"; empty ones at the end are not counted. A cell may
// be in double quotes, within which two quotes stand for one and the delimiter
// for itself; it ends on the line it began on. A byte-order mark of UTF-8 is
// skipped.
//
// Not thread-safe.
class DelimitedReader : public Rows {
 public:
  // `text` is the contents of `path`, which is for errors; it must outlive the
  // reader.
  //
  // Errors:
  //   InvalidArgument  "PATH:LINE: what is wrong": no header line, a column
  //                    without a name, or two of one name
  static absl::StatusOr<DelimitedReader> Create(absl::string_view text, std::string path,
                                                char delimiter);

  const std::vector<std::string>& header() const override { return header_; }
  std::string HeaderPlace() const override;
  std::string PlaceOf(size_t column) const override;
  const std::string& path() const { return path_; }
  // Of the row that was read last; the header is line 1.
  size_t line() const { return line_; }

  // Errors:
  //   InvalidArgument  "PATH:LINE: what is wrong": fewer cells than the header has
  //                    (names the first column without one), or more; a quote
  //                    that does not end
  absl::StatusOr<bool> NextRow(std::vector<std::string>& cells) override;

 private:
  DelimitedReader(absl::string_view text, std::string path, char delimiter);

  absl::Status SplitLine(std::vector<std::string>& cells);

  absl::string_view rest_;
  std::string path_;
  char delimiter_;
  size_t line_ = 0;
  std::vector<std::string> header_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_DELIMITED_H_
