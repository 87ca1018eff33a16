// How a tensor's elements are encoded between a worker and a server, as plain data. The codecs
// themselves are in codec.h.

#ifndef SYNCGRADS_COMMON_CODEC_ENCODING_H_
#define SYNCGRADS_COMMON_CODEC_ENCODING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// The enum values equal those of syncgrads.v1.Codec. A received message may have any other value.
enum class Codec : uint32_t {
  kRaw = 0,  // not encoded: the elements in the tensor's dtype
  kF16 = 1,
  kBF16 = 2,
  kInt8 = 3,
  kTopK = 4,
  kOneBit = 5,
};

// Returns "raw", "f16", "bf16", "int8", "top-k" or "one-bit"; for an unknown codec, for example
// "codec 9".
std::string NameOf(Codec codec);

// A codec and its parameters.
struct Encoding {
  Codec codec = Codec::kRaw;
  // Top-k only: the fraction of a block's elements that is sent. 0 for other codecs.
  double fraction = 0;

  bool is_raw() const { return codec == Codec::kRaw; }

  friend bool operator==(const Encoding&, const Encoding&) = default;
};

inline constexpr double kDefaultTopKFraction = 0.02;

// Returns for example "int8" or "top-k 0.01".
std::string ToString(const Encoding& encoding);

// Checks the codec and its parameters.
//
// Errors:
//   InvalidArgument  the codec is unknown; the fraction of top-k is not above 0 and at most 0.5;
//                    or the fraction of another codec is not 0
absl::Status Validate(const Encoding& encoding);

// The encodings of a tensor: `push` for its contributions, `result` for its results.
struct Compression {
  Encoding push;
  Encoding result;

  friend bool operator==(const Compression&, const Compression&) = default;
};

// Returns for example "raw" or "push int8, result raw".
std::string ToString(const Compression& compression);

// Returns the codec that replaces `codec` if `codec` loses too much: int8 for top-k and one-bit,
// raw for all others.
Codec MilderThan(Codec codec);

// Checks that a payload may be encoded with `used` if `planned` is the encoding of the group's
// plan: `used` must be the planned codec, or a milder one (see MilderThan).
//
// Errors:
//   InvalidArgument  `used` is another codec
absl::Status CheckUsed(Codec used, const Encoding& planned);

// Returns the encoding of a payload whose codec is `used`, with the parameters of `planned`. `used`
// has passed CheckUsed.
Encoding EncodingOf(Codec used, const Encoding& planned);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_ENCODING_H_
