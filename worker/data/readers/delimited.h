// Rows of cells from a delimited text file with a header line (CSV, TSV).

#ifndef SYNCGRADS_WORKER_DATA_READERS_DELIMITED_H_
#define SYNCGRADS_WORKER_DATA_READERS_DELIMITED_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/readers/rows.h"

namespace syncgrads {

// Reads a delimited text file. Lines end in "\n" or "\r\n"; empty lines at the end are ignored.
// A cell may be in double quotes; two quotes inside it stand for one quote, and a delimiter
// inside it is text. A quoted cell ends on the line on which it begins. A UTF-8 byte-order mark
// is skipped.
//
// Not thread-safe.
class DelimitedReader : public Rows {
 public:
  // `text` is the contents of the file and must outlive the reader. `path` is for errors.
  //
  // Errors:
  //   InvalidArgument  "PATH:LINE: what is wrong": no header line, a column without a name, or
  //                    two columns of one name
  static absl::StatusOr<DelimitedReader> Create(absl::string_view text, std::string path,
                                                char delimiter);

  const std::vector<std::string>& header() const override { return header_; }
  std::string HeaderPlace() const override;
  std::string PlaceOf(size_t column) const override;
  const std::string& path() const { return path_; }
  // The line of the row that was read last. The header is line 1.
  size_t line() const { return line_; }

  // Reads the next row, see Rows.
  //
  // Errors:
  //   InvalidArgument  "PATH:LINE: what is wrong": fewer cells than the header has (names the
  //                    first column without a cell), more cells, or a quote that does not end
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

#endif  // SYNCGRADS_WORKER_DATA_READERS_DELIMITED_H_
