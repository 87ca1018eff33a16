#include "client/rounds/chunk_answer.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/aligned_buffer.h"

namespace syncgrads::client {
namespace {

// Returns what is wrong with the list of contributors, or with a span's count of them; empty if
// they agree.
std::string FindCountFault(const GroupSpec& spec, const UpdateHeader& header) {
  const std::vector<uint32_t>& ranks = header.contributors;
  const auto unordered = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>());
  if (unordered != ranks.end()) {
    return absl::StrCat("rank ", unordered[1], " after rank ", unordered[0],
                        " in its list of contributors");
  }
  // Only the receiver's own contribution is counted. It is not listed if the receiver has skipped
  // round 0 or is not in the newest epoch.
  const bool own_only = std::holds_alternative<Staleness>(spec.policy);
  if (own_only && ranks.size() > 1) {
    return absl::StrCat(ranks.size(), " contributors, but at most 1 was expected");
  }
  const bool gathers = std::holds_alternative<Gather>(spec.rule);
  for (size_t s = 0; s < header.counts.size(); ++s) {
    const uint32_t count = header.counts[s];
    if (own_only && count > 1) {
      return absl::StrCat(count, " contributors to span ", s, ", but at most 1 was expected");
    }
    // Contributions to a gather have all spans.
    const bool agrees = gathers ? count == ranks.size() : own_only || count <= ranks.size();
    if (agrees) continue;
    return absl::StrCat(count, " contributors to span ", s, ", but lists ", ranks.size());
  }
  return "";
}

// Returns what is wrong with the answer; empty if it fits.
std::string FindFault(const GroupPlan& plan, Generation generation, const UpdateFrame& answer,
                      bool without_result, const Compressor& compressor) {
  const UpdateHeader& header = answer.header;
  const Chunk& chunk = plan.layout.chunk(header.chunk);
  if (header.generation != generation) {
    return absl::StrCat("generation ", ToNumber(header.generation), ", but the job's is ",
                        ToNumber(generation));
  }
  if (header.counts.size() != chunk.spans.size()) {
    return absl::StrCat(header.counts.size(), " counts, but the chunk has ", chunk.spans.size(),
                        " spans");
  }
  if (std::string fault = FindCountFault(plan.spec, header); !fault.empty()) return fault;
  const bool nothing = !std::holds_alternative<Optimizer>(plan.spec.rule) &&
                       std::all_of(header.counts.begin(), header.counts.end(),
                                   [](uint32_t count) { return count == 0; });
  const bool gathers = std::holds_alternative<Gather>(plan.spec.rule);
  const size_t results = gathers ? header.contributors.size() : 1;
  const size_t whole = results * compressor.ResultBytes(header.chunk, header.codec);
  const size_t expected = without_result || nothing ? 0 : whole;
  const size_t payload = TotalBytes(answer.payload);
  // The server may send a result that was not requested. It is ignored.
  const bool unrequested = expected == 0 && payload == whole;
  if (payload == expected || unrequested) return "";
  return absl::StrCat(payload, " bytes of payload, but ", expected, " were expected");
}

void JoinSplitElements(size_t element, ChunkAnswer& answer) {
  Pieces& payload = answer.update.payload;
  const auto is_whole = [element](absl::Span<const std::byte> piece) {
    return reinterpret_cast<uintptr_t>(piece.data()) % element == 0 && piece.size() % element == 0;
  };
  if (std::all_of(payload.begin(), payload.end(), is_whole)) return;
  auto whole = std::make_shared<AlignedBuffer>(TotalBytes(payload));
  Scatter(payload, {{whole->data(), whole->size()}});
  payload = {absl::MakeConstSpan(whole->data(), whole->size())};
  answer.memory = std::move(whole);
}

}  // namespace

absl::Status CheckPayload(const GroupPlan& plan, const UpdateFrame& answer,
                          const Compressor& compressor) {
  const ChunkId chunk = answer.header.chunk;
  const size_t chunks = plan.layout.chunks().size();
  if (ToNumber(chunk) >= chunks) {
    return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", ToNumber(chunk),
                                                   " of group \"", plan.spec.name, "\", which has ",
                                                   chunks, " chunks"));
  }
  const absl::Status status = compressor.CheckResult(chunk, answer.header.codec, answer.payload);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", ToNumber(chunk),
                                                 " of group \"", plan.spec.name,
                                                 "\": ", status.message()));
}

absl::Status CheckAnswer(const GroupPlan& plan, Generation generation, const UpdateFrame& answer,
                         bool without_result, const Compressor& compressor) {
  if (!answer.header.error.ok()) return absl::OkStatus();
  const std::string fault = FindFault(plan, generation, answer, without_result, compressor);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", ToNumber(answer.header.chunk),
                                                 " of group \"", plan.spec.name, "\" has ", fault));
}

void Unpack(const Chunk& chunk, absl::Span<const Target> targets, bool in_place,
            const Compressor& compressor, ChunkAnswer& answer) {
  UpdateFrame& update = answer.update;
  if (update.header.codec != Codec::kRaw && (!targets.empty() || in_place)) {
    auto decoded = std::make_shared<AlignedBuffer>(
        compressor.Decode(update.header.chunk, update.header.codec, update.payload));
    update.payload = {absl::MakeConstSpan(decoded->data(), decoded->size())};
    answer.memory = std::move(decoded);
  }
  if (!targets.empty()) Scatter(update.payload, targets);
  if (in_place) {
    JoinSplitElements(SizeOf(chunk.dtype), answer);
  } else {
    answer.memory.reset();
  }
}

}  // namespace syncgrads::client
