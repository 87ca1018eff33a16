#include "worker/base/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// The pieces in which a file is decompressed: smaller ones for a small file.
constexpr size_t kLeastPieceBytes = 1 << 12;
constexpr size_t kMostPieceBytes = 1 << 18;
// zlib counts its input in 32 bits.
constexpr size_t kMaxInput = 1 << 30;
// 15 allows any window size; 16 selects gzip's format.
constexpr int kGzipWindowBits = 15 + 16;

}  // namespace

absl::StatusOr<std::string> Gunzip(absl::string_view compressed, const std::string& path,
                                   size_t max_bytes) {
  z_stream stream = {};
  if (inflateInit2(&stream, kGzipWindowBits) != Z_OK) {
    return absl::InternalError(absl::StrCat(path, ": cannot initialise zlib"));
  }
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  std::vector<char> piece(std::clamp(compressed.size(), kLeastPieceBytes, kMostPieceBytes));
  std::string contents;
  int code = Z_STREAM_END;
  while (!compressed.empty()) {
    const size_t given = std::min(compressed.size(), kMaxInput);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(given);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    code = inflate(&stream, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END) {
      return absl::DataLossError(
          absl::StrCat(path, ": damaged after ", contents.size(),
                       " decompressed bytes: ", stream.msg == nullptr ? "no data" : stream.msg));
    }
    compressed.remove_prefix(given - stream.avail_in);
    contents.append(piece.data(), piece.size() - stream.avail_out);
    if (contents.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " holds more than ", max_bytes, " bytes"));
    }
    if (code == Z_STREAM_END && !compressed.empty()) inflateReset(&stream);
  }
  // zlib may have read all of the input before it has written all of the output.
  while (code == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    code = inflate(&stream, Z_NO_FLUSH);
    contents.append(piece.data(), piece.size() - stream.avail_out);
    if (contents.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " holds more than ", max_bytes, " bytes"));
    }
  }
  if (code != Z_STREAM_END) {
    return absl::DataLossError(
        absl::StrCat(path, " is truncated after ", contents.size(), " decompressed bytes"));
  }
  return contents;
}

}  // namespace syncgrads
