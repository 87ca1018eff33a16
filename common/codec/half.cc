#include "common/codec/half.h"

#include "absl/strings/str_cat.h"
#include "common/codec/block_arithmetic.h"
#include "common/kernels/convert.h"

namespace syncgrads {
namespace {

float LargestOf(DType dtype) { return dtype == DType::kF16 ? 65504.0f : 0x1.fep127f; }
uint16_t ExponentOf(DType dtype) { return dtype == DType::kF16 ? 0x7c00 : 0x7f80; }

}  // namespace

void HalfCodec::Encode(const float* values, size_t count, std::byte* out) const {
  alignas(64) float clamped[kCodecBlock];
  Clamp(values, count, LargestOf(dtype_), clamped);
  FromFloat(clamped, count, dtype_, out);
}

absl::Status HalfCodec::Check(const std::byte* encoded, size_t count) const {
  if (!AnyHasAllOf(encoded, count, ExponentOf(dtype_))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("an element in ", NameOf(dtype_), " is infinite or NaN"));
}

void HalfCodec::Decode(const std::byte* encoded, size_t count, float* values) const {
  ToFloat(dtype_, encoded, count, values);
}

}  // namespace syncgrads
