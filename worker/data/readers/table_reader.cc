#include "worker/data/readers/table_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/data/readers/delimited.h"
#include "worker/data/readers/joined_rows.h"

namespace syncgrads {
namespace {

// The indices of a table's columns in its file.
struct Positions {
  std::vector<size_t> features;
  size_t target = 0;
  std::vector<size_t> more_targets;
  std::optional<size_t> weight;
};

absl::StatusOr<size_t> Find(const Rows& rows, const std::string& column) {
  const auto& header = rows.header();
  const auto it = std::find(header.begin(), header.end(), column);
  if (it == header.end()) {
    return absl::InvalidArgumentError(absl::StrCat(rows.HeaderPlace(), ": there is no column \"",
                                                   column, "\"; the header has ",
                                                   absl::StrJoin(header, ", ")));
  }
  return it - header.begin();
}

absl::StatusOr<Positions> Locate(const Rows& rows, const TableColumns& columns) {
  Positions positions;
  if (columns.target_kind != TargetKind::kNone) {
    SYNCGRADS_ASSIGN_OR_RETURN(positions.target, Find(rows, columns.target));
    for (const std::string& target : columns.more_targets) {
      SYNCGRADS_ASSIGN_OR_RETURN(const size_t position, Find(rows, target));
      positions.more_targets.push_back(position);
    }
  }
  if (!columns.weight.empty() && columns.target_kind != TargetKind::kNone) {
    SYNCGRADS_ASSIGN_OR_RETURN(positions.weight, Find(rows, columns.weight));
  }
  for (const std::string& feature : columns.features) {
    SYNCGRADS_ASSIGN_OR_RETURN(const size_t position, Find(rows, feature));
    positions.features.push_back(position);
  }
  if (columns.features.empty()) {
    for (size_t i = 0; i < rows.header().size(); ++i) {
      const std::string& name = rows.header()[i];
      const auto& more = columns.more_targets;
      if (name != columns.target && (columns.weight.empty() || name != columns.weight) &&
          std::find(more.begin(), more.end(), name) == more.end()) {
        positions.features.push_back(i);
      }
    }
  }
  if (positions.features.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        rows.HeaderPlace(), ": there is no column besides the target \"", columns.target, "\""));
  }
  return positions;
}

absl::Status CellError(const Rows& rows, size_t column, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(rows.PlaceOf(column), ": column \"", rows.header()[column], "\": ", problem));
}

absl::StatusOr<double> ParseNumber(const Rows& rows, size_t column, const std::string& cell) {
  if (cell.empty()) return CellError(rows, column, "the cell is empty");
  double value;
  if (!absl::SimpleAtod(cell, &value)) {
    return CellError(rows, column, absl::StrCat("\"", cell, "\" is not a number"));
  }
  if (!std::isfinite(value)) {
    return CellError(rows, column, absl::StrCat("\"", cell, "\" is not a finite number"));
  }
  return value;
}

// Numbers the class names in the order of their first occurrence.
class ClassCounter {
 public:
  size_t NumberOf(const std::string& name, const std::string& place) {
    const auto [it, is_new] = numbers_.emplace(name, places_.size());
    if (is_new) places_.push_back(place);
    return it->second;
  }

  // Replaces `targets` by indices in the sorted list of classes, and returns that list.
  std::vector<ClassName> Sort(std::vector<double>& targets) const {
    std::vector<ClassName> classes;
    std::vector<size_t> sorted_position(places_.size());
    for (const auto& [name, number] : numbers_) {
      sorted_position[number] = classes.size();
      classes.push_back({name, places_[number]});
    }
    for (double& target : targets) {
      target = static_cast<double>(sorted_position[static_cast<size_t>(target)]);
    }
    return classes;
  }

 private:
  std::map<std::string, size_t> numbers_;
  std::vector<std::string> places_;
};

}  // namespace

absl::StatusOr<Table> ParseTable(Rows& rows, const TableColumns& columns) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Positions positions, Locate(rows, columns));
  Table table;
  table.target_name = columns.target;
  table.target_kind = columns.target_kind;
  table.targets_per_row = 1 + columns.more_targets.size();
  for (const size_t position : positions.features) {
    table.feature_names.push_back(rows.header()[position]);
  }
  ClassCounter classes;
  std::vector<std::string> cells;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, rows.NextRow(cells));
    if (!more) break;
    for (const size_t position : positions.features) {
      SYNCGRADS_ASSIGN_OR_RETURN(const double value, ParseNumber(rows, position, cells[position]));
      table.features.push_back(value);
    }
    if (columns.target_kind == TargetKind::kNumber) {
      SYNCGRADS_ASSIGN_OR_RETURN(const double value,
                                 ParseNumber(rows, positions.target, cells[positions.target]));
      table.targets.push_back(value);
      for (const size_t position : positions.more_targets) {
        SYNCGRADS_ASSIGN_OR_RETURN(const double further,
                                   ParseNumber(rows, position, cells[position]));
        table.targets.push_back(further);
      }
    } else if (columns.target_kind == TargetKind::kClass) {
      const std::string& name = cells[positions.target];
      if (name.empty()) return CellError(rows, positions.target, "the cell is empty");
      table.targets.push_back(
          static_cast<double>(classes.NumberOf(name, rows.PlaceOf(positions.target))));
    }
    if (positions.weight.has_value()) {
      SYNCGRADS_ASSIGN_OR_RETURN(const double value,
                                 ParseNumber(rows, *positions.weight, cells[*positions.weight]));
      table.weights.push_back(value);
    }
    ++table.rows;
  }
  if (columns.target_kind == TargetKind::kClass) table.classes = classes.Sort(table.targets);
  return table;
}

absl::StatusOr<Table> ReadTable(const Storage& storage, const std::string& path, char delimiter,
                                const TableColumns& columns) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text,
                             ReadDecompressed(storage, path, std::numeric_limits<size_t>::max()));
  SYNCGRADS_ASSIGN_OR_RETURN(DelimitedReader rows,
                             DelimitedReader::Create(text, storage.NameOf(path), delimiter));
  return ParseTable(rows, columns);
}

absl::StatusOr<Table> ReadJoinedTable(const Storage& storage, absl::Span<const TableFile> files,
                                      const TableColumns& columns) {
  // The readers refer to the texts, so the vector has its final size from the start.
  std::vector<std::string> texts(files.size());
  std::vector<RowsWithId> tables;
  for (size_t i = 0; i < files.size(); ++i) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        texts[i], ReadDecompressed(storage, files[i].path, std::numeric_limits<size_t>::max()));
    SYNCGRADS_ASSIGN_OR_RETURN(
        DelimitedReader rows,
        DelimitedReader::Create(texts[i], storage.NameOf(files[i].path), files[i].delimiter));
    tables.push_back({std::move(rows), files[i].id});
  }
  SYNCGRADS_ASSIGN_OR_RETURN(JoinedRows rows, JoinedRows::Create(std::move(tables)));
  return ParseTable(rows, columns);
}

}  // namespace syncgrads
