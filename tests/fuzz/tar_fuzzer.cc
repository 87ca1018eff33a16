// Reads arbitrary bytes as a tar archive of images, or as its index.

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_storage.h"
#include "worker/data/readers/packed_images.h"
#include "worker/data/readers/tar.h"

namespace syncgrads::fuzz {
namespace {

std::string Member(const std::string& name, const std::string& contents, char type = '0') {
  return TarHeader(name, contents.size(), type) + contents +
         std::string(TarPadding(contents.size()), '\0');
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const bool is_index = choices.Byte() % 2 != 0;
  const std::string bytes(choices.Rest());
  const MemoryStorage storage({{is_index ? "a.tar.csv" : "a.tar", bytes}});
  const auto images = ListPacked(storage, "a.tar");
  RequireExplained(images.status());
  if (!images.ok() || is_index) return;
  for (const PackedImage& image : *images) {
    Require(image.offset + image.size <= bytes.size(), "an image is within its archive");
  }
}

std::vector<std::string> Seeds() {
  const std::string end(2 * kTarBlock, '\0');
  const std::string pax = Member("pax", "24 path=a/long/name.jpg\n", 'x');
  return {
      std::string(1, '\0') + Member("a/1.jpg", "jpeg") + Member("a/1.cls", "3") + end,
      std::string(1, '\0') + pax + Member("b.jpeg", std::string(700, 'j')) + end,
      std::string(1, '\0') + end,
      "\1name,class,offset,size\n1.jpg,3,512,4\n",
  };
}

}  // namespace syncgrads::fuzz
