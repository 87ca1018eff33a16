#include "common/codec/codec.h"

#include "common/codec/half.h"
#include "common/codec/int8.h"
#include "common/codec/one_bit.h"
#include "common/codec/top_k.h"

namespace syncgrads {

std::unique_ptr<const BlockCodec> MakeCodec(const Encoding& encoding) {
  switch (encoding.codec) {
    case Codec::kRaw:
      break;
    case Codec::kF16:
      return std::make_unique<HalfCodec>(DType::kF16);
    case Codec::kBF16:
      return std::make_unique<HalfCodec>(DType::kBF16);
    case Codec::kInt8:
      return std::make_unique<Int8Codec>();
    case Codec::kTopK:
      return std::make_unique<TopKCodec>(encoding.fraction);
    case Codec::kOneBit:
      return std::make_unique<OneBitCodec>();
  }
  return nullptr;
}

size_t EncodedSpanBytes(const BlockCodec& codec, size_t elements) {
  const size_t rest = elements % kCodecBlock;
  return elements / kCodecBlock * codec.EncodedBytes(kCodecBlock) +
         (rest == 0 ? 0 : codec.EncodedBytes(rest));
}

}  // namespace syncgrads
