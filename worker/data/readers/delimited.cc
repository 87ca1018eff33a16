#include "worker/data/readers/delimited.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::StatusOr<DelimitedReader> DelimitedReader::Create(absl::string_view text, std::string path,
                                                        char delimiter) {
  DelimitedReader reader(text, std::move(path), delimiter);
  if (reader.rest_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.path_, ":1: the file is empty, there is no header line"));
  }
  SYNCGRADS_RETURN_IF_ERROR(reader.SplitLine(reader.header_));
  std::set<absl::string_view> seen;
  for (size_t i = 0; i < reader.header_.size(); ++i) {
    const std::string& name = reader.header_[i];
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader.path_, ":1: column ", i + 1, " of the header has no name"));
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader.path_, ":1: the header has two columns \"", name, "\""));
    }
  }
  return reader;
}

DelimitedReader::DelimitedReader(absl::string_view text, std::string path, char delimiter)
    : rest_(text), path_(std::move(path)), delimiter_(delimiter) {
  absl::ConsumePrefix(&rest_, "\xef\xbb\xbf");
  while (absl::ConsumeSuffix(&rest_, "\n") || absl::ConsumeSuffix(&rest_, "\r")) {
  }
}

std::string DelimitedReader::HeaderPlace() const { return absl::StrCat(path_, ":1"); }

std::string DelimitedReader::PlaceOf(size_t) const { return absl::StrCat(path_, ":", line_); }

absl::StatusOr<bool> DelimitedReader::NextRow(std::vector<std::string>& cells) {
  if (rest_.empty()) return false;
  SYNCGRADS_RETURN_IF_ERROR(SplitLine(cells));
  if (cells.size() < header_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", line_, ": no cell for column \"", header_[cells.size()],
                     "\": the row has ", cells.size(), " cells, the header has ", header_.size()));
  }
  if (cells.size() > header_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_,
                                                   ": too many cells: the row has ", cells.size(),
                                                   ", the header has ", header_.size()));
  }
  return true;
}

absl::Status DelimitedReader::SplitLine(std::vector<std::string>& cells) {
  ++line_;
  const size_t end = rest_.find('\n');
  absl::string_view line = rest_.substr(0, end);
  rest_ = end == absl::string_view::npos ? absl::string_view() : rest_.substr(end + 1);
  absl::ConsumeSuffix(&line, "\r");
  cells.clear();
  while (true) {
    std::string& cell = cells.emplace_back();
    if (absl::ConsumePrefix(&line, "\"")) {
      while (true) {
        const size_t quote = line.find('"');
        if (quote == absl::string_view::npos) {
          return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_, ": the quote in cell ",
                                                         cells.size(),
                                                         " does not end on its line"));
        }
        cell.append(line.data(), quote);
        line.remove_prefix(quote + 1);
        if (!absl::ConsumePrefix(&line, "\"")) break;
        cell.push_back('"');
      }
    }
    // Text after a closing quote belongs to the cell.
    const size_t delimiter = line.find(delimiter_);
    absl::StrAppend(&cell, line.substr(0, delimiter));
    if (delimiter == absl::string_view::npos) return absl::OkStatus();
    line.remove_prefix(delimiter + 1);
  }
}

}  // namespace syncgrads
