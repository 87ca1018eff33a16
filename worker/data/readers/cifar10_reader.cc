#include "worker/data/readers/cifar10_reader.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/data/images/byte_images.h"
#include "worker/data/readers/labels.h"

namespace syncgrads {
namespace {

constexpr size_t kRecordBytes = 1 + 3 * 32 * 32;
constexpr uint32_t kClasses = 10;

}  // namespace

absl::StatusOr<Table> ReadCifar10(const Storage& storage, const std::vector<std::string>& files,
                                  TargetKind target_kind) {
  std::string records;
  std::vector<uint32_t> labels;
  std::vector<std::string> places;
  std::vector<std::string> names;
  for (const std::string& file : files) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string contents,
                               ReadDecompressed(storage, file, std::numeric_limits<size_t>::max()));
    const std::string& path = names.emplace_back(storage.NameOf(file));
    if (contents.size() % kRecordBytes != 0) {
      return absl::DataLossError(absl::StrCat(path, " has ", contents.size(),
                                              " bytes, which is not a multiple of the record size ",
                                              kRecordBytes));
    }
    for (size_t record = 0; record < contents.size() / kRecordBytes; ++record) {
      const uint32_t label = static_cast<unsigned char>(contents[record * kRecordBytes]);
      places.push_back(absl::StrCat(path, ": record ", record));
      if (label >= kClasses) {
        return absl::DataLossError(
            absl::StrCat(places.back(), ": label ", label, " is not from 0 to ", kClasses - 1));
      }
      labels.push_back(label);
    }
    records += contents;
  }
  Table table;
  table.rows = labels.size();
  table.images =
      std::make_shared<ByteImages>(Shape::Image(3, 32, 32), std::move(records), kRecordBytes,
                                   /*offset=*/1, absl::StrJoin(names, "+"));
  if (target_kind != TargetKind::kNone) {
    SetLabels(
        labels, target_kind, [&](size_t row) { return places[row]; }, table);
  }
  return table;
}

}  // namespace syncgrads
