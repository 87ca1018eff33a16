#include "worker/data/readers/idx_reader.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/data/images/byte_images.h"
#include "worker/data/readers/labels.h"

namespace syncgrads {
namespace {

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();
constexpr unsigned char kUnsignedBytes = 8;
// The largest number of pixels of an image in a file without images. In a file with images, its
// length limits them.
constexpr uint64_t kMaxPixelsWithoutImages = 1 << 20;

struct Idx {
  std::vector<uint64_t> sizes;
  std::string numbers;
};

absl::StatusOr<Idx> Parse(std::string contents, const std::string& path, size_t dimensions) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(contents[i]); };
  const size_t header = 4 + 4 * dimensions;
  if (contents.size() < 4 || byte(0) != 0 || byte(1) != 0) {
    return absl::DataLossError(absl::StrCat(path, " is not an IDX file"));
  }
  if (byte(2) != kUnsignedBytes || byte(3) != dimensions) {
    return absl::DataLossError(absl::StrCat(path, " has numbers of type ", byte(2), " in ", byte(3),
                                            " dimensions, must have bytes (type 8) in ",
                                            dimensions));
  }
  if (contents.size() < header) {
    return absl::DataLossError(
        absl::StrCat(path, " is truncated in its header of ", header, " bytes"));
  }
  Idx idx;
  uint64_t count = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    uint64_t size = 0;
    for (size_t b = 0; b < 4; ++b) size = size << 8 | byte(4 + 4 * i + b);
    idx.sizes.push_back(size);
    // The product of three sizes may overflow. It is then set to a size that no file has.
    if (size != 0 && count > std::numeric_limits<uint64_t>::max() / size)
      count = kAnySize;
    else
      count *= size;
  }
  if (contents.size() - header != count) {
    return absl::DataLossError(absl::StrCat(
        path, " should have ", count, " bytes of numbers, but has ", contents.size() - header));
  }
  contents.erase(0, header);
  idx.numbers = std::move(contents);
  return idx;
}

}  // namespace

absl::StatusOr<Table> ReadIdx(const Storage& storage, const std::string& image_path,
                              const std::string& label_path, TargetKind target_kind) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::string contents, ReadDecompressed(storage, image_path, kAnySize));
  const std::string images = storage.NameOf(image_path);
  SYNCGRADS_ASSIGN_OR_RETURN(Idx pixels, Parse(std::move(contents), images, 3));
  Table table;
  table.rows = pixels.sizes[0];
  // Each of the three sizes has 32 bits, so that the product of two does not overflow.
  if (table.rows == 0 && pixels.sizes[1] * pixels.sizes[2] > kMaxPixelsWithoutImages) {
    return absl::DataLossError(absl::StrCat(
        images, " has 0 images of ", pixels.sizes[1], "x", pixels.sizes[2],
        " pixels; without images, an image may have at most ", kMaxPixelsWithoutImages));
  }
  const Shape shape =
      Shape::Image(1, static_cast<int64_t>(pixels.sizes[1]), static_cast<int64_t>(pixels.sizes[2]));
  if (shape.size() == 0) {
    return absl::DataLossError(absl::StrCat(images, " has images of shape ", ToString(shape)));
  }
  table.images = std::make_shared<ByteImages>(shape, std::move(pixels.numbers), shape.size(),
                                              /*offset=*/0, images);
  if (target_kind == TargetKind::kNone) return table;
  SYNCGRADS_ASSIGN_OR_RETURN(contents, ReadDecompressed(storage, label_path, kAnySize));
  const std::string labels = storage.NameOf(label_path);
  SYNCGRADS_ASSIGN_OR_RETURN(const Idx classes, Parse(std::move(contents), labels, 1));
  if (classes.sizes[0] != table.rows) {
    return absl::InvalidArgumentError(absl::StrCat(labels, " has ", classes.sizes[0],
                                                   " labels, but ", images, " has ", table.rows,
                                                   " images"));
  }
  std::vector<uint32_t> numbers;
  for (const char label : classes.numbers) numbers.push_back(static_cast<unsigned char>(label));
  SetLabels(
      numbers, target_kind, [&](size_t row) { return absl::StrCat(labels, ": label ", row); },
      table);
  return table;
}

}  // namespace syncgrads
