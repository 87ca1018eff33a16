// Reads arbitrary bytes as NumPy arrays: features, and targets. The table that is read is no larger
// than the files justify.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_storage.h"
#include "worker/data/readers/numpy_reader.h"

namespace syncgrads::fuzz {
namespace {

std::string Npy(const std::string& type, const std::string& shape, const std::string& numbers) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return "\x93NUMPY" + std::string("\1\0", 2) + Encoded(header.size(), 2) + header + numbers;
}

std::string InputOf(TargetKind kind, const std::string& features, const std::string& targets) {
  return Encoded(static_cast<uint64_t>(kind), 1) + Encoded(features.size(), 2) + features + targets;
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const TargetKind kinds[] = {TargetKind::kNone, TargetKind::kNumber, TargetKind::kClass};
  const TargetKind kind = kinds[choices.Byte() % 3];
  const std::string features(choices.Take(choices.Number(2)));
  const std::string targets(choices.Rest());
  const MemoryStorage storage({{"x.npy", features}, {"y.npy", targets}});
  const absl::StatusOr<Table> table = ReadNumpy(storage, "x.npy", "y.npy", kind);
  RequireExplained(table.status());
  if (!table.ok()) return;
  Require(table->features.size() == table->rows * table->feature_names.size(),
          "each row has each feature");
  Require(table->targets.size() == (kind == TargetKind::kNone ? 0 : table->rows),
          "each row has a target, if targets are read");
  Require(table->rows <= features.size(), "a row has at least one byte");
}

std::vector<std::string> Seeds() {
  const std::string classes = Npy("|u1", "(2,)", std::string("\3\7", 2));
  const std::string numbers = Npy("<f8", "(2,)", std::string(16, '\0'));
  return {
      InputOf(TargetKind::kNone, Npy("<f4", "(2, 3)", std::string(24, '\1')), ""),
      InputOf(TargetKind::kClass, Npy("<i8", "(2, 1)", std::string(16, '\2')), classes),
      InputOf(TargetKind::kNumber, Npy("|b1", "(2, 2, 2)", std::string(8, '\1')), numbers),
      InputOf(TargetKind::kNone, Npy("<u2", "(0, 3)", ""), ""),
      InputOf(TargetKind::kNone, Npy("<f4", "(0, 4611686018427387904)", ""), ""),
  };
}

}  // namespace syncgrads::fuzz
