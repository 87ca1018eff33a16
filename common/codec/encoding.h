// How a tensor's elements are encoded between a worker and a server, as plain
// data. What encodes them is in codec.h.

#ifndef SYNCGRADS_COMMON_CODEC_ENCODING_H_
#define SYNCGRADS_COMMON_CODEC_ENCODING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// The values are those of syncgrads.v1.Codec. Others than these may arrive.
enum class Codec : uint32_t {
  kRaw = 0,  // as the dtype says
  kF16 = 1,
  kBF16 = 2,
  kInt8 = 3,
  kTopK = 4,
  kOneBit = 5,
};

// "raw", "f16", "bf16", "int8", "top-k" or "one-bit"; "codec 9" of one that is not
// known.
std::string NameOf(Codec codec);

// A codec and its parameters.
struct Encoding {
  Codec codec = Codec::kRaw;
  // Of top-k: which part of a block's elements is sent. 0 of the others.
  double fraction = 0;

  bool is_raw() const { return codec == Codec::kRaw; }

  friend bool operator==(const Encoding&, const Encoding&) = default;
};

inline constexpr double kDefaultTopKFraction = 0.02;

// "int8", "top-k 0.01"
std::string ToString(const Encoding& encoding);

// InvalidArgument if the codec is not known, or the fraction is not above 0 and at
// most 0.5 of top-k, or not 0 of another.
absl::Status Validate(const Encoding& encoding);

// What a tensor's contributions are encoded by, and its results.
struct Compression {
  Encoding push;
  Encoding result;

  friend bool operator==(const Compression&, const Compression&) = default;
};

// "raw", or "push int8, result raw"
std::string ToString(const Compression& compression);

// What is sent in place of `codec` where that loses too much: int8 in place of
// top-k and one-bit, the elements as they are in place of the others.
Codec MilderThan(Codec codec);

// The encoding of a payload that names `used`, where `planned` is what was agreed
// upon: the same, or a milder one.
//
// Errors:
//   InvalidArgument  `used` is another
absl::Status CheckUsed(Codec used, const Encoding& planned);

// `used`, which has passed CheckUsed, with its parameters.
Encoding EncodingOf(Codec used, const Encoding& planned);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ENCODING_H_
