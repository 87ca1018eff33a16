// Decompresses arbitrary bytes. The result respects the limit.

#include <zlib.h>

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "worker/base/gzip.h"

namespace syncgrads::fuzz {
namespace {

constexpr size_t kMaxBytes = 1 << 13;

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  Require(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK,
          "zlib is initialised");
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  Require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "a text is compressed");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace

void Fuzz(absl::string_view input) {
  const absl::StatusOr<std::string> contents = Gunzip(input, "f.gz", kMaxBytes);
  RequireExplained(contents.status());
  Require(!contents.ok() || contents->size() <= kMaxBytes, "the limit is respected");
}

std::vector<std::string> Seeds() {
  const std::string small = Gzip("a,b\n1,2\n");
  return {small, small + Gzip(std::string(1000, 'x')), Gzip(""),
          Gzip(std::string(2 * kMaxBytes, 'x'))};
}

}  // namespace syncgrads::fuzz
