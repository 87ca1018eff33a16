// Parses arbitrary bytes as a safetensors file. A file that is accepted can be written again, and
// then has the same tensors and metadata.

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "worker/io/safetensors.h"

namespace syncgrads::fuzz {
namespace {

std::string FileOf(const std::vector<StoredTensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::string file = SafetensorsHeader(tensors, metadata);
  for (const StoredTensor& tensor : tensors) file += std::string(tensor.bytes);
  return file;
}

std::vector<StoredTensor> TensorsOf(const Safetensors& file) {
  std::vector<StoredTensor> tensors;
  for (const TensorSpec& spec : file.specs()) {
    const absl::StatusOr<absl::string_view> bytes = file.Find(spec);
    Require(bytes.ok() && bytes->size() == spec.bytes(), "a tensor of the file is found");
    tensors.push_back({spec, *bytes});
  }
  return tensors;
}

}  // namespace

void Fuzz(absl::string_view input) {
  const absl::StatusOr<Safetensors> file = Safetensors::Parse(std::string(input), "f");
  RequireExplained(file.status());
  if (!file.ok()) return;
  const std::vector<StoredTensor> tensors = TensorsOf(*file);
  const absl::StatusOr<Safetensors> again =
      Safetensors::Parse(FileOf(tensors, file->metadata()), "f");
  Require(again.ok(), "a file that is written again is accepted");
  Require(again->metadata() == file->metadata(), "the metadata is written as it was read");
  for (const StoredTensor& tensor : tensors) {
    const absl::StatusOr<absl::string_view> bytes = again->Find(tensor.spec);
    Require(bytes.ok() && *bytes == tensor.bytes, "a tensor is written as it was read");
  }
}

std::vector<std::string> Seeds() {
  const std::string bytes(24, '\1');
  return {
      FileOf({{{"w", DType::kF32, {2, 3}}, bytes}}, {}),
      FileOf({{{"scalar", DType::kF64, {}}, bytes.substr(0, 8)}, {{"none", DType::kI32, {0}}, ""}},
             {{"format", "pt"}, {"gr\xc3\xa4te", "\"quoted\""}}),
      FileOf({}, {}),
  };
}

}  // namespace syncgrads::fuzz
