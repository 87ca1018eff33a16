// The codecs: they encode float32 numbers in fewer bytes and decode them.
//
// A span is encoded in blocks of kCodecBlock elements; the last block may be shorter. Each block is
// encoded by itself, so that a receiver decodes block after block in the L1 cache. The length of an
// encoded block depends only on the encoding and on the number of its elements. The bytes are
// little-endian and have any alignment:
//
//   f16, bf16  each element in 2 bytes, rounded to nearest even; a magnitude that is too large
//              becomes the largest finite one
//   int8       for each 256 elements (the last group may be shorter): f32 scale, then one int8
//              for each element. The decoded value is scale * int8. With m = the largest
//              magnitude, but at most 2^126, the scale is m / 127, or 0 if m is below 2^-100
//   top-k      u16 positions[k], ascending; f32 values[k]. These are the k elements of the
//              largest magnitudes; among equal magnitudes, the first. k is the fraction of the
//              elements, rounded up. All other elements decode to 0
//   one-bit    for each 256 elements (the last group may be shorter): f32 scale, then one bit for
//              each element, from the lowest bit of a byte on, padded with zeros to a whole byte.
//              The decoded value is scale if the bit is 0, and -scale if it is 1. The scale is
//              the mean magnitude
//
// int8 is block-wise quantisation (Dettmers et al. 2022) with linear steps. top-k is from Aji and
// Heafield 2017, but applied to each block. one-bit is EF-signSGD (Karimireddy et al. 2019). No
// codec draws random numbers: the sender keeps the rounding error and adds it to the next values
// that it sends (error_feedback.h).
//
// On every processor, the same numbers give the same bytes, and the same bytes give the same
// numbers.

#ifndef SYNCGRADS_COMMON_CODEC_CODEC_H_
#define SYNCGRADS_COMMON_CODEC_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "common/codec/encoding.h"

namespace syncgrads {

inline constexpr size_t kCodecBlock = 2048;

// A codec with its parameters. `count` is from 1 to kCodecBlock in every function. Immutable;
// thread-safe.
class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // Returns the length of an encoded block in bytes.
  virtual size_t EncodedBytes(size_t count) const = 0;
  // Encodes `values`, which must be finite, to EncodedBytes(count) bytes at `out`.
  virtual void Encode(const float* values, size_t count, std::byte* out) const = 0;
  // Checks that Decode can decode the block to finite numbers.
  //
  // Errors:
  //   InvalidArgument  `encoded` has a number that is not finite, or a scale, a position or
  //                    padding that Encode never writes
  virtual absl::Status Check(const std::byte* encoded, size_t count) const = 0;
  // Decodes a block. Writes only to values[0] to values[count - 1], even if `encoded` is invalid.
  virtual void Decode(const std::byte* encoded, size_t count, float* values) const = 0;
};

// Returns the codec for `encoding`, which has passed Validate; null for raw.
std::unique_ptr<const BlockCodec> MakeCodec(const Encoding& encoding);

// Returns the length of an encoded span in bytes.
size_t EncodedSpanBytes(const BlockCodec& codec, size_t elements);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_CODEC_H_
