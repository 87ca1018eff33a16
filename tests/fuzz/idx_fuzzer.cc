// Reads arbitrary bytes as IDX files: images, and labels. The images that are read are no larger
// than the file.

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_storage.h"
#include "worker/data/readers/idx_reader.h"

namespace syncgrads::fuzz {
namespace {

std::string BigEndian(uint64_t number) {
  const std::string bytes = Encoded(number, 4);
  return std::string(bytes.rbegin(), bytes.rend());
}

std::string Idx(const std::vector<uint64_t>& sizes, const std::string& numbers) {
  std::string file = std::string("\0\0\x8", 3) + Encoded(sizes.size(), 1);
  for (const uint64_t size : sizes) file += BigEndian(size);
  return file + numbers;
}

std::string InputOf(TargetKind kind, const std::string& images, const std::string& labels) {
  return Encoded(static_cast<uint64_t>(kind), 1) + Encoded(images.size(), 2) + images + labels;
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const TargetKind kinds[] = {TargetKind::kNone, TargetKind::kNumber, TargetKind::kClass};
  const TargetKind kind = kinds[choices.Byte() % 3];
  const std::string images(choices.Take(choices.Number(2)));
  const std::string labels(choices.Rest());
  const MemoryStorage storage({{"images", images}, {"labels", labels}});
  const absl::StatusOr<Table> table = ReadIdx(storage, "images", "labels", kind);
  RequireExplained(table.status());
  if (!table.ok()) return;
  Require(table->targets.size() == (kind == TargetKind::kNone ? 0 : table->rows),
          "each image has a label, if labels are read");
  constexpr size_t kMaxWithoutImages = 1 << 20;
  const size_t pixels = static_cast<size_t>(table->images->shape().size());
  Require(pixels <= std::max(images.size(), kMaxWithoutImages), "an image lies in the file");
  std::vector<float> read(pixels);
  for (const size_t image : {size_t{0}, table->rows - 1}) {
    if (image >= table->rows) continue;
    const absl::Status status = table->images->Read(image, ImageUse(), absl::MakeSpan(read));
    Require(status.ok(), "an image can be read");
  }
}

std::vector<std::string> Seeds() {
  return {
      InputOf(TargetKind::kNone, Idx({3, 2, 2}, std::string(12, '\5')), ""),
      InputOf(TargetKind::kClass, Idx({2, 1, 4}, std::string(8, '\5')), Idx({2}, "\1\2")),
      InputOf(TargetKind::kNumber, Idx({1, 3, 3}, std::string(9, '\5')), Idx({1}, "\1")),
      InputOf(TargetKind::kNone, Idx({0, 28, 28}, ""), ""),
      InputOf(TargetKind::kNone, Idx({0, 0xffffffff, 0xffffffff}, ""), ""),
  };
}

}  // namespace syncgrads::fuzz
