#include "server/core/closing/contribution.h"

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/group/restored.h"
#include "common/kernels/reduce.h"
#include "common/status_macros.h"
#include "common/wire/encoded_chunk.h"

namespace syncgrads::server {
namespace {

absl::Status CheckAbsentSpans(const GroupPlan& plan, const PushHeader& header) {
  const Chunk& chunk = plan.layout.chunk(header.chunk);
  if (header.absent_spans.empty()) return absl::OkStatus();
  if (std::holds_alternative<Gather>(plan.spec.rule)) {
    return absl::InvalidArgumentError(
        "a contribution to a gather must have every span of the chunk, or be a skip");
  }
  for (size_t i = 0; i < header.absent_spans.size(); ++i) {
    if (header.absent_spans[i] >= chunk.spans.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("absent span ", header.absent_spans[i],
                       " is out of range; number of spans: ", chunk.spans.size()));
    }
    if (i > 0 && header.absent_spans[i] <= header.absent_spans[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("absent span ", header.absent_spans[i],
                                                     " follows ", header.absent_spans[i - 1],
                                                     "; they must ascend"));
    }
  }
  if (header.absent_spans.size() == chunk.spans.size()) {
    return absl::InvalidArgumentError("every span is absent; send a skip instead");
  }
  return absl::OkStatus();
}

// Returns true if the payload has the parameters together with the optimizer's slots and update
// counts (see RestoredBytes).
bool IsRestored(const GroupPlan& plan, const PushHeader& header, size_t payload_bytes) {
  const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule);
  return optimizer != nullptr && header.round == Round{0} && header.absent_spans.empty() &&
         payload_bytes == RestoredBytes(plan.layout.chunk(header.chunk), *optimizer);
}

// The number of elements in the spans that are present.
uint64_t ExpectedElements(const Chunk& chunk, const std::vector<uint32_t>& absent_spans) {
  uint64_t elements = chunk.elements;
  for (uint32_t absent : absent_spans) elements -= chunk.spans[absent].elements;
  return elements;
}

// Builds the error for a payload of the wrong length. The message names the tensor if the chunk is
// one whole tensor, otherwise the chunk.
absl::Status WrongLength(const GroupPlan& plan, const PushHeader& header, size_t payload_bytes,
                         uint64_t expected_elements, const std::string& sender) {
  const Chunk& chunk = plan.layout.chunk(header.chunk);
  const TensorSpec& first = plan.layout.tensor(chunk.spans.front().tensor);
  const size_t element_bytes = SizeOf(chunk.dtype);
  const std::string has = payload_bytes % element_bytes == 0
                              ? absl::StrCat(payload_bytes / element_bytes, " values")
                              : absl::StrCat(payload_bytes, " bytes");
  const std::string wanted =
      payload_bytes % element_bytes == 0
          ? absl::StrCat(expected_elements)
          : absl::StrCat(expected_elements * element_bytes, " bytes of ", NameOf(chunk.dtype));
  const std::string what =
      chunk.spans.size() == 1 && chunk.elements == first.elements()
          ? absl::StrCat("gradient \"", first.name, "\"")
          : absl::StrCat("chunk ", ToNumber(header.chunk), " (from tensor \"", first.name,
                         "\" to \"", plan.layout.tensor(chunk.spans.back().tensor).name, "\")");
  return absl::InvalidArgumentError(absl::StrCat(what, " of group \"", plan.spec.name, "\" has ",
                                                 has, " from ", sender, ", layout has ", wanted));
}

absl::Status CheckCodec(const GroupPlan& plan, const PushHeader& header) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckUsed(header.codec, plan.layout.chunk(header.chunk).compression.push));
  if (header.codec == Codec::kRaw) return absl::OkStatus();
  if (std::holds_alternative<Optimizer>(plan.spec.rule) && header.round == Round{0}) {
    return absl::InvalidArgumentError("the initial parameters must not be compressed");
  }
  // A worker can change shared memory after the check. A raw payload may have any bits, but an
  // encoded one has to stay decodable.
  if (!header.shared.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a payload with codec ", NameOf(header.codec),
                                                   " must not be in shared memory"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPush(const GroupPlan& plan, const PushHeader& header, const Pieces& payload,
                       const std::string& sender) {
  const size_t payload_bytes = TotalBytes(payload);
  const auto with_place = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", ToNumber(header.chunk), " of group \"",
                                                   plan.spec.name, "\" from ", sender, ": ",
                                                   status.message()));
  };
  if (absl::Status codec = CheckCodec(plan, header); !codec.ok()) return with_place(codec);
  if (header.weight != 0 && !IsWeight(header.weight)) {
    return with_place(absl::InvalidArgumentError(
        absl::StrCat("weight ", header.weight, " is not between 2^-64 and 2^64")));
  }
  if (header.skip) {
    if (payload_bytes == 0 && header.absent_spans.empty()) return absl::OkStatus();
    return with_place(absl::InvalidArgumentError(
        absl::StrCat("a skip with ", payload_bytes, " bytes of payload and ",
                     header.absent_spans.size(), " absent spans; must have neither")));
  }
  if (absl::Status spans = CheckAbsentSpans(plan, header); !spans.ok()) return with_place(spans);
  const Chunk& chunk = plan.layout.chunk(header.chunk);
  if (header.codec != Codec::kRaw) {
    const auto codec = MakeCodec(EncodingOf(header.codec, chunk.compression.push));
    const absl::Status encoded =
        CheckEncodedChunk(*codec, plan.layout, chunk, payload, header.absent_spans);
    return encoded.ok() ? encoded : with_place(encoded);
  }
  const uint64_t expected = ExpectedElements(chunk, header.absent_spans);
  if (payload_bytes != expected * SizeOf(chunk.dtype) && !IsRestored(plan, header, payload_bytes)) {
    return WrongLength(plan, header, payload_bytes, expected, sender);
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
