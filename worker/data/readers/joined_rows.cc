#include "worker/data/readers/joined_rows.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::StatusOr<size_t> FindId(const RowsWithId& table) {
  const std::vector<std::string>& header = table.rows.header();
  const auto it = std::find(header.begin(), header.end(), table.id);
  if (it != header.end()) return static_cast<size_t>(it - header.begin());
  return absl::InvalidArgumentError(
      absl::StrCat(table.rows.HeaderPlace(), ": there is no column \"", table.id,
                   "\" for the ID; the header has ", absl::StrJoin(header, ", ")));
}

absl::Status IdTwiceError(const std::string& place, const std::string& id,
                          const std::string& first) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": the ID \"", id, "\" is already at ",
                                                 first, ", but IDs must be unique"));
}

}  // namespace

absl::StatusOr<JoinedRows> JoinedRows::Create(std::vector<RowsWithId> tables) {
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t id_column, FindId(tables.front()));
  JoinedRows joined(std::move(tables.front()), id_column);
  joined.header_ = joined.master_.rows.header();
  joined.header_.erase(joined.header_.begin() + static_cast<std::ptrdiff_t>(id_column));
  for (size_t i = 1; i < tables.size(); ++i) {
    SYNCGRADS_RETURN_IF_ERROR(joined.Add(std::move(tables[i])));
  }
  return joined;
}

absl::Status JoinedRows::Add(RowsWithId table) {
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t id_column, FindId(table));
  Others others;
  others.path = table.rows.path();
  others.first_column = header_.size();
  for (size_t i = 0; i < table.rows.header().size(); ++i) {
    if (i == id_column) continue;
    const std::string& name = table.rows.header()[i];
    if (std::find(header_.begin(), header_.end(), name) != header_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(table.rows.HeaderPlace(), ": column \"", name,
                                                     "\" is also in an earlier table"));
    }
    header_.push_back(name);
  }
  std::vector<std::string> cells;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, table.rows.NextRow(cells));
    if (!more) break;
    const std::string id = std::move(cells[id_column]);
    cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(id_column));
    const auto [it, is_new] =
        others.rows.emplace(id, Row{table.rows.PlaceOf(id_column), std::move(cells)});
    if (!is_new) return IdTwiceError(table.rows.PlaceOf(id_column), id, it->second.place);
  }
  others_.push_back(std::move(others));
  return absl::OkStatus();
}

std::string JoinedRows::PlaceOf(size_t column) const {
  for (auto it = others_.rbegin(); it != others_.rend(); ++it) {
    if (column >= it->first_column) return it->found->place;
  }
  return master_.rows.PlaceOf(column);
}

absl::StatusOr<bool> JoinedRows::NextRow(std::vector<std::string>& cells) {
  SYNCGRADS_ASSIGN_OR_RETURN(const bool more, master_.rows.NextRow(cells));
  if (!more) return false;
  const std::string id = std::move(cells[id_column_]);
  cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(id_column_));
  const auto [first, is_new] = places_.emplace(id, master_.rows.PlaceOf(id_column_));
  if (!is_new) return IdTwiceError(master_.rows.PlaceOf(id_column_), id, first->second);
  for (Others& others : others_) {
    const auto it = others.rows.find(id);
    if (it == others.rows.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          master_.rows.PlaceOf(id_column_), ": the ID \"", id, "\" is not in ", others.path));
    }
    others.found = &it->second;
    cells.insert(cells.end(), it->second.cells.begin(), it->second.cells.end());
  }
  return true;
}

}  // namespace syncgrads
