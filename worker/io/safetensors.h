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
#include "common/group/layout.h"

namespace syncgrads {

// An array in memory of spec.bytes() bytes.
struct StoredTensor {
  TensorSpec spec;
  absl::string_view bytes;
};

// Returns the beginning of such a file. The tensors' bytes follow it in the order given. Names
// differ from each other and from "__metadata__".
std::string SafetensorsHeader(absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

// Writes the file `path`, completely or not at all.
//
// Errors: those of WriteFileAtomically.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const StoredTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

// The contents of a file. Moveable; a move invalidates pointers to the tensors' bytes.
class Safetensors {
 public:
  // Parses the contents of a file. `path` is its name in errors.
  //
  // Errors:
  //   DataLoss  "PATH: what is wrong": the file is cut short or too long, the
  //             header is not what is described above, a dtype is unknown, a
  //             shape's bytes are not those of its offsets (both are named), or
  //             the arrays do not cover the rest of the file without gaps
  static absl::StatusOr<Safetensors> Parse(std::string contents, const std::string& path);

  // Reads and parses a file. Errors: those of ReadRegularFile and Parse.
  static absl::StatusOr<Safetensors> Read(const std::string& path);

  // The tensors, in the order in which they lie in the file.
  absl::Span<const TensorSpec> specs() const { return specs_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Returns the bytes of the tensor that `expected` describes.
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
  // The offset of each tensor's bytes in `contents_`.
  std::vector<size_t> begins_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_IO_SAFETENSORS_H_
