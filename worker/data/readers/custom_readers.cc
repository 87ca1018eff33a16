#include "worker/data/readers/custom_readers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status CheckCount(const std::string& kind, absl::string_view what, size_t count,
                        size_t wanted) {
  if (count == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.custom: reader \"", kind, "\" made ", count,
                                                 " ", what, ", but its rows need ", wanted));
}

absl::Status CheckTable(const std::string& kind, const Table& table,
                        const CustomReaderOptions& options) {
  if (table.images == nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(CheckCount(kind, "features", table.features.size(),
                                         table.rows * table.feature_names.size()));
  }
  if (table.target_kind != options.columns.target_kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.custom: reader \"", kind, "\" made targets of the wrong kind"));
  }
  const bool has_targets = table.target_kind != TargetKind::kNone;
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(kind, "targets of each row", table.targets_per_row,
                                       1 + options.columns.more_targets.size()));
  SYNCGRADS_RETURN_IF_ERROR(CheckCount(kind, "targets", table.targets.size(),
                                       has_targets ? table.rows * table.targets_per_row : 0));
  const bool has_weights = has_targets && !options.columns.weight.empty();
  SYNCGRADS_RETURN_IF_ERROR(
      CheckCount(kind, "weights", table.weights.size(), has_weights ? table.rows : 0));
  for (size_t row = 0; table.target_kind == TargetKind::kClass && row < table.rows; ++row) {
    const double target = table.targets[row];
    if (target >= 0 && target < static_cast<double>(table.classes.size())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data.custom: reader \"", kind, "\" made row ", row, " of class ", target,
                     ", but the number of classes is ", table.classes.size()));
  }
  return absl::OkStatus();
}

template <typename Registered>
absl::Status Unknown(absl::string_view what, const std::string& kind,
                     const Registered& registered) {
  const std::string known = absl::StrJoin(
      registered, ", ", [](std::string* out, const auto& one) { out->append(one.first); });
  return absl::InvalidArgumentError(
      absl::StrCat("data.custom: unknown ", what, " \"", kind, "\"; this program has ",
                   known.empty() ? absl::StrCat("no custom ", what, "s") : known));
}

}  // namespace

void CustomReaders::AddStream(const std::string& kind, BatchStreamMaker maker) {
  streams_.emplace(kind, std::move(maker));
}

absl::StatusOr<std::unique_ptr<BatchStream>> CustomReaders::OpenStream(
    const std::string& kind, const BatchStreamOptions& options) const {
  const auto it = streams_.find(kind);
  if (it == streams_.end()) return Unknown("stream", kind, streams_);
  return it->second(options);
}

void CustomReaders::Add(const std::string& kind, CustomReader reader) {
  readers_.emplace(kind, std::move(reader));
}

absl::StatusOr<Table> CustomReaders::Read(const std::string& kind,
                                          const CustomReaderOptions& options) const {
  const auto it = readers_.find(kind);
  if (it == readers_.end()) return Unknown("reader", kind, readers_);
  SYNCGRADS_ASSIGN_OR_RETURN(Table table, it->second(options));
  SYNCGRADS_RETURN_IF_ERROR(CheckTable(kind, table, options));
  return table;
}

const CustomReaders& NoCustomReaders() {
  static const auto& none = *new CustomReaders();
  return none;
}

}  // namespace syncgrads
