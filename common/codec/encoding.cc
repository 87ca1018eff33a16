#include "common/codec/encoding.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

std::string NameOf(Codec codec) {
  switch (codec) {
    case Codec::kRaw:
      return "raw";
    case Codec::kF16:
      return "f16";
    case Codec::kBF16:
      return "bf16";
    case Codec::kInt8:
      return "int8";
    case Codec::kTopK:
      return "top-k";
    case Codec::kOneBit:
      return "one-bit";
  }
  return absl::StrCat("codec ", static_cast<uint32_t>(codec));
}

std::string ToString(const Encoding& encoding) {
  if (encoding.codec != Codec::kTopK) return NameOf(encoding.codec);
  return absl::StrCat("top-k ", encoding.fraction);
}

std::string ToString(const Compression& compression) {
  if (compression == Compression()) return "raw";
  return absl::StrCat("push ", ToString(compression.push), ", result ",
                      ToString(compression.result));
}

absl::Status Validate(const Encoding& encoding) {
  switch (encoding.codec) {
    case Codec::kTopK:
      if (encoding.fraction > 0 && encoding.fraction <= 0.5) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("the fraction of top-k is ", encoding.fraction,
                                                     "; must be above 0 and at most 0.5"));
    case Codec::kRaw:
    case Codec::kF16:
    case Codec::kBF16:
    case Codec::kInt8:
    case Codec::kOneBit:
      if (encoding.fraction == 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("fraction ", encoding.fraction, " for codec ",
                                                     NameOf(encoding.codec),
                                                     "; only top-k has a fraction"));
  }
  return absl::InvalidArgumentError(absl::StrCat(NameOf(encoding.codec), " is unknown"));
}

Codec MilderThan(Codec codec) {
  return codec == Codec::kTopK || codec == Codec::kOneBit ? Codec::kInt8 : Codec::kRaw;
}

absl::Status CheckUsed(Codec used, const Encoding& planned) {
  for (Codec codec = planned.codec; codec != used; codec = MilderThan(codec)) {
    if (codec != Codec::kRaw) continue;
    return absl::InvalidArgumentError(absl::StrCat("a payload with codec ", NameOf(used),
                                                   ", where ", ToString(planned), " is expected"));
  }
  return absl::OkStatus();
}

Encoding EncodingOf(Codec used, const Encoding& planned) {
  return {used, used == Codec::kTopK ? planned.fraction : 0};
}

}  // namespace syncgrads
