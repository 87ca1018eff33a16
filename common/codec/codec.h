// What makes fewer bytes of float32 numbers, and numbers of the bytes again.
//
// A span is encoded in blocks of kCodecBlock elements, the last one shorter, each
// by itself, so that a receiver decodes one block after the other in the
// first-level cache. How long an encoded block is depends on the encoding and the
// number of its elements alone. The bytes are little-endian, aligned in any way:
//
//   f16, bf16  each element in 2 bytes, rounded to nearest even; a magnitude that
//              is too large becomes the largest finite one
//   int8       for each 256 elements, the last ones fewer: f32 scale, then an int8
//              for each element. The value is scale * int8; the scale is the
//              largest magnitude / 127 (of 2^126 where it is larger), or 0 where it
//              is below 2^-100
//   top-k      the k elements of the largest magnitudes, of equal ones the first;
//              k is the fraction of the elements, rounded up:
//              u16 positions[k], ascending; f32 values[k]. The others are 0
//   one-bit    for each 256 elements, the last ones fewer: f32 scale, then a bit for
//              each element, the lowest of a byte first, and zeros to its end. The
//              value is scale where the bit is 0, and -scale where it is 1. The scale
//              is the mean magnitude
//
// int8 is as in 1-bit Adam's and Dettmers' block-wise quantisation (2015), top-k as
// Aji and Heafield 2017 but by block, one-bit as EF-signSGD (Karimireddy et al.
// 2019). None draws random numbers: what rounding loses is kept by the sender and
// added to what it sends next (error_feedback.h).
//
// The same numbers give the same bytes, and the same bytes the same numbers, on
// every processor.

#ifndef SYNCGRADS_COMMON_CODEC_CODEC_H_
#define SYNCGRADS_COMMON_CODEC_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "common/codec/encoding.h"

namespace syncgrads {

inline constexpr size_t kCodecBlock = 2048;

// One codec with its parameters. `count` is from 1 to kCodecBlock everywhere.
// Immutable; thread-safe.
class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // The length of an encoded block.
  virtual size_t EncodedBytes(size_t count) const = 0;
  // `values` are finite.
  virtual void Encode(const float* values, size_t count, std::byte* out) const = 0;
  // InvalidArgument unless `encoded` is what Encode can make: finite numbers at
  // positions that there are.
  virtual absl::Status Check(const std::byte* encoded, size_t count) const = 0;
  // Touches no memory beyond `values` whatever `encoded` is.
  virtual void Decode(const std::byte* encoded, size_t count, float* values) const = 0;
};

// Null for raw. The encoding has passed Validate.
std::unique_ptr<const BlockCodec> MakeCodec(const Encoding& encoding);

// The length of an encoded span.
size_t EncodedSpanBytes(const BlockCodec& codec, size_t elements);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CODEC_CODEC_H_
