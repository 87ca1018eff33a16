// Reads arbitrary bytes as a delimited text file, and as two of them that are joined by ID. Every
// row of the table that is read has every feature.

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_storage.h"
#include "worker/data/readers/table_reader.h"

namespace syncgrads::fuzz {
namespace {

std::string InputOf(int choices, const std::string& first, const std::string& second) {
  return Encoded(static_cast<uint64_t>(choices), 1) + Encoded(first.size(), 2) + first + second;
}

void RequireComplete(const absl::StatusOr<Table>& table, const TableColumns& columns) {
  RequireExplained(table.status());
  if (!table.ok()) return;
  Require(table->features.size() == table->rows * table->feature_names.size(),
          "each row has each feature");
  Require(table->targets.size() == (columns.target_kind == TargetKind::kNone ? 0 : table->rows),
          "each row has a target, if targets are read");
  Require(table->weights.size() == (columns.weight.empty() ? 0 : table->rows),
          "each row has a weight, if weights are read");
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const uint8_t choice = choices.Byte();
  const char delimiter = choice & 1 ? '\t' : ',';
  TableColumns columns;
  if (choice & 2) columns.features = {"a", "b"};
  if (choice & 4) {
    columns.target = "t";
    columns.target_kind = choice & 8 ? TargetKind::kClass : TargetKind::kNumber;
    if (choice & 16) columns.weight = "w";
  }
  const std::string first(choices.Take(choices.Number(2)));
  const std::string second(choices.Rest());
  const MemoryStorage storage({{"1.csv", first}, {"2.csv", second}});
  RequireComplete(ReadTable(storage, "1.csv", delimiter, columns), columns);
  const std::vector<TableFile> files = {{"1.csv", delimiter, "ID"}, {"2.csv", delimiter, "ID"}};
  RequireComplete(ReadJoinedTable(storage, files, columns), columns);
}

std::vector<std::string> Seeds() {
  return {
      InputOf(0, "a,b\n1,2\n-3.5,4e2\n", ""),
      InputOf(1,
              "\xef\xbb\xbf"
              "a\tb\r\n1\t2\r\n",
              ""),
      InputOf(2 + 4, "b,a,\"t\"\n1,\"2\",3\n", ""),
      InputOf(4 + 8 + 16, "a,w,t\n1,0.5,\"red \"\"one\"\"\"\n2,1,green\n\n", ""),
      InputOf(4 + 8, "ID,a\nx,1\ny,2\n", "ID,t\ny,red\nx,green\n"),
  };
}

}  // namespace syncgrads::fuzz
