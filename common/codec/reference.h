// Reference implementations of the codecs for tests: plain loops over single elements. They give
// the same bytes and the same numbers as the codecs.

#ifndef SYNCGRADS_COMMON_CODEC_REFERENCE_H_
#define SYNCGRADS_COMMON_CODEC_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/codec/encoding.h"
#include "common/kernels/reference.h"

namespace syncgrads::reference {

template <typename T>
void Append(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T TakeFront(const std::string& bytes, size_t& at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  at += sizeof(value);
  return value;
}

inline float LargestMagnitude(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

inline std::string EncodeHalf(const std::vector<float>& values, bool bf16) {
  const float largest = bf16 ? FloatOfBF16(0x7f7f) : FloatOfF16(0x7bff);
  std::string bytes;
  for (const float value : values) {
    const float clamped = std::clamp(value, -largest, largest);
    Append<uint16_t>(bf16 ? BF16OfFloat(clamped) : F16OfFloat(clamped), bytes);
  }
  return bytes;
}

inline std::string EncodeInt8(const std::vector<float>& values) {
  std::string bytes;
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const std::vector<float> group(values.begin() + begin,
                                   values.begin() + std::min(begin + 256, values.size()));
    const float largest = std::min(LargestMagnitude(group), 0x1p126f);
    const bool all_zeros = largest < 0x1p-100f;
    const float inverse = all_zeros ? 0 : 127 / largest;
    Append<float>(all_zeros ? 0 : largest / 127, bytes);
    for (const float value : group) {
      Append(static_cast<int8_t>(std::clamp(std::nearbyint(value * inverse), -128.0f, 127.0f)),
             bytes);
    }
  }
  return bytes;
}

inline std::string EncodeTopK(const std::vector<float>& values, double fraction) {
  const auto kept = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  std::vector<uint16_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint16_t a, uint16_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  std::string bytes;
  for (const uint16_t position : order) Append(position, bytes);
  for (const uint16_t position : order) Append(values[position], bytes);
  return bytes;
}

inline std::string EncodeOneBit(const std::vector<float>& values) {
  std::string bytes;
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const size_t elements = std::min<size_t>(values.size() - begin, 256);
    float sums[16] = {};
    std::string bits((elements + 7) / 8, '\0');
    for (size_t i = 0; i < elements; ++i) {
      const float value = values[begin + i];
      sums[i % 16] += std::fabs(value) * 0x1p-8f;
      if (value < 0) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
    }
    Append(std::min(sums[0] * (256.0f / static_cast<float>(elements)),
                    std::numeric_limits<float>::max()),
           bytes);
    bytes += bits;
  }
  return bytes;
}

// Encodes one block, which must not be empty and must be finite.
inline std::string Encode(const Encoding& encoding, const std::vector<float>& values) {
  switch (encoding.codec) {
    case Codec::kRaw:
      break;
    case Codec::kF16:
      return EncodeHalf(values, /*bf16=*/false);
    case Codec::kBF16:
      return EncodeHalf(values, /*bf16=*/true);
    case Codec::kInt8:
      return EncodeInt8(values);
    case Codec::kTopK:
      return EncodeTopK(values, encoding.fraction);
    case Codec::kOneBit:
      return EncodeOneBit(values);
  }
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

inline std::vector<float> Decode(const Encoding& encoding, const std::string& bytes, size_t count) {
  std::vector<float> values(count);
  size_t at = 0;
  if (encoding.codec == Codec::kTopK) {
    const size_t kept = bytes.size() / 6;
    size_t value_at = 2 * kept;
    for (size_t i = 0; i < kept; ++i) {
      values[TakeFront<uint16_t>(bytes, at)] = TakeFront<float>(bytes, value_at);
    }
    return values;
  }
  float scale = 0;
  for (size_t i = 0; i < count; ++i) {
    switch (encoding.codec) {
      case Codec::kF16:
        values[i] = FloatOfF16(TakeFront<uint16_t>(bytes, at));
        break;
      case Codec::kBF16:
        values[i] = FloatOfBF16(TakeFront<uint16_t>(bytes, at));
        break;
      case Codec::kInt8:
        if (i % 256 == 0) scale = TakeFront<float>(bytes, at);
        values[i] = scale * static_cast<float>(TakeFront<int8_t>(bytes, at));
        break;
      case Codec::kOneBit:
        if (i % 256 == 0) {
          if (i > 0) at += 32;
          scale = TakeFront<float>(bytes, at);
        }
        values[i] = (bytes[at + i % 256 / 8] >> (i % 8) & 1) != 0 ? -scale : scale;
        break;
      default:
        values[i] = TakeFront<float>(bytes, at);
    }
  }
  return values;
}

}  // namespace syncgrads::reference

#endif  // SYNCGRADS_COMMON_CODEC_REFERENCE_H_
