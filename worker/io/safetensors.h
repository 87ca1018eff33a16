// Named arrays in a file, in the format "safetensors".
//
// A file is, without gaps: 8 bytes, the length of the header, little-endian; the
// header, a JSON object padded with spaces to a multiple of 8; the arrays' bytes,
// little-endian, row-major. The header gives for each name
// {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, offsets
// counted from the end of the header; and, under "__metadata__", an object of
// strings. See https://github.com/huggingface/safetensors.

#ifndef SYNCGRADS_WORKER_IO_SAFETENSORS_H_
#define SYNCGRADS_WORKER_IO_SAFETENSORS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/layout.h"

namespace syncgrads {

// An array in memory: spec.bytes() of it.
struct StoredTensor {
  TensorSpec spec;
  absl::string_view bytes;
};

// What such a file begins with; the tensors' bytes follow, in the order given. Names
// differ from each other and from "__metadata__".
std::string SafetensorsHeader(absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

// Writes the file `path` as a whole or not at all.
//
// Errors: as WriteFileAtomically.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

// The contents of a file. Moveable: the tensors' bytes lie in what is moved.
class Safetensors {
 public:
  // Takes the contents of the file `path`, which is for errors.
  //
  // Errors:
  //   DataLoss  "PATH: what is wrong": the file is cut short or too long, the
  //             header is not what is described above, a dtype is unknown, a
  //             shape's bytes are not those of its offsets (both are named), or
  //             the arrays do not cover the rest of the file without gaps
  static absl::StatusOr<Safetensors> Parse(std::string contents, const std::string& path);

  // Errors: as Parse, and as ReadFile if it cannot be read.
  static absl::StatusOr<Safetensors> Read(const std::string& path);

  // In the order in which they lie in the file.
  absl::Span<const TensorSpec> specs() const { return specs_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The bytes of the tensor that `expected` describes.
  //
  // Errors:
  //   NotFound         the file has no tensor of that name
  //   InvalidArgument  it has another dtype or shape; names both
  absl::StatusOr<absl::string_view> Find(const TensorSpec& expected) const;

 private:
  Safetensors() = default;

  std::string path_;
  std::string contents_;
  std::vector<TensorSpec> specs_;
  // Where each one's bytes begin in `contents_`.
  std::vector<size_t> begins_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_IO_SAFETENSORS_H_
