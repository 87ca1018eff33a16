// The side of GroupRounds that callers wait on; group_rounds.cc is the one that
// faces the wire.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/group_rounds.h"

namespace syncgrads::client {
namespace {

// Appends `bytes` of `from`, from `offset` on; neighbours in memory become one.
void AppendRange(const Pieces& from, size_t offset, size_t bytes,
                 std::vector<absl::Span<const std::byte>>& to) {
  for (absl::Span<const std::byte> piece : from) {
    const size_t skipped = std::min(offset, piece.size());
    offset -= skipped;
    piece = piece.subspan(skipped, bytes);
    bytes -= piece.size();
    if (piece.empty()) continue;
    if (!to.empty() && to.back().data() + to.back().size() == piece.data()) {
      to.back() = absl::MakeConstSpan(to.back().data(), to.back().size() + piece.size());
    } else {
      to.push_back(piece);
    }
  }
}

}  // namespace

GroupRounds::Chunks GroupRounds::AllChunks() const {
  return {0, static_cast<uint32_t>(plan_->layout.chunks().size())};
}

const TensorSpec& GroupRounds::AwaitedTensorLocked(uint32_t c) const {
  const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
  for (const Span& span : chunk.spans) {
    if (tensors_[ToNumber(span.tensor)].state == TensorState::kAwaited) {
      return plan_->layout.tensor(span.tensor);
    }
  }
  return plan_->layout.tensor(chunk.spans.front().tensor);
}

absl::Status GroupRounds::CheckSent(Chunks chunks) const {
  MutexLock lock(mutex_);
  for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
    if (chunks_[c].state != ChunkState::kCollecting) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor \"", AwaitedTensorLocked(c).name, "\" has not been pushed or skipped in step ",
        ToNumber(round_), " of group \"", plan_->spec.name, "\": chunk ", c,
        ", which it has a part of, has not been sent"));
  }
  return absl::OkStatus();
}

bool GroupRounds::Await(Chunks chunks, absl::Time deadline) const {
  MutexLock lock(mutex_);
  const uint32_t end = chunks.first + chunks.count;
  uint32_t next = chunks.first;  // all before it are done
  bool in_time = true;
  while (true) {
    while (next < end && chunks_[next].state == ChunkState::kDone) ++next;
    if (next == end) return true;
    if (failures_ > 0 &&
        std::any_of(chunks_.begin() + next, chunks_.begin() + end,
                    [](const ChunkRound& c) { return c.state == ChunkState::kFailed; })) {
      return true;
    }
    if (!in_time || deadline == absl::InfinitePast()) return false;
    in_time = changed_.WaitUntil(mutex_, deadline);
  }
}

bool GroupRounds::IsOver(Chunks chunks) const { return Await(chunks, absl::InfinitePast()); }

absl::Status GroupRounds::Outcome(Chunks chunks) {
  MutexLock lock(mutex_);
  absl::Status failure;
  bool done = true;
  for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
    if (chunks_[c].state != ChunkState::kDone) done = false;
    if (chunks_[c].state != ChunkState::kFailed) continue;
    chunks_[c].said = true;
    failure.Update(chunks_[c].error);
  }
  if (!failure.ok() || done) return failure;
  return absl::UnavailableError("not every chunk has been answered");
}

GroupRounds::Unanswered GroupRounds::FindUnanswered(Chunks chunks) const {
  MutexLock lock(mutex_);
  Unanswered unanswered;
  for (uint32_t c = chunks.first; c < chunks.first + chunks.count; ++c) {
    if (chunks_[c].state != ChunkState::kSent) continue;
    ++unanswered.chunks;
    std::vector<ServerIndex>& servers = unanswered.servers;
    if (std::find(servers.begin(), servers.end(), plan_->servers[c]) == servers.end()) {
      servers.push_back(plan_->servers[c]);
    }
  }
  std::sort(unanswered.servers.begin(), unanswered.servers.end());
  return unanswered;
}

Contributors GroupRounds::CountContributors(TensorId tensor) {
  MutexLock lock(mutex_);
  const Chunks range = plan_->layout.ChunksOf(tensor);
  Contributors contributors{UINT32_MAX, 0};
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t c = range.first; c < range.first + range.count; ++c) {
      const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
      const size_t s = chunk.SpanOf(tensor);
      if (s >= chunks_[c].counts.size()) continue;
      const uint32_t count = chunks_[c].counts[s];
      if (pass == 0) {
        const std::vector<uint32_t>& left_out = chunks_[c].left_out;
        contributors.left_out |= std::binary_search(left_out.begin(), left_out.end(), s);
        contributors.least = std::min(contributors.least, count);
        contributors.most = std::max(contributors.most, count);
        continue;
      }
      const absl::Span<std::byte> result = tensors_[ToNumber(tensor)].result.buffer;
      if (count > 0 || result.empty()) continue;
      const Span& span = chunk.spans[s];
      const size_t element = SizeOf(chunk.dtype);
      std::memset(result.data() + span.tensor_offset * element, 0, span.elements * element);
    }
    if (contributors.least > contributors.most) return {};
    const bool in_part = contributors.least == 0 && contributors.most > 0;
    if (!in_part || holds_parameters() || gathers()) break;
  }
  return contributors;
}

const std::byte* GroupRounds::ZerosLocked() {
  if (zeros_.empty()) {
    for (const Chunk& chunk : plan_->layout.chunks()) {
      if (chunk.bytes() > zeros_.size()) zeros_.resize(chunk.bytes());
    }
  }
  return zeros_.data();
}

absl::StatusOr<std::vector<absl::Span<const std::byte>>> GroupRounds::InPlaceResult(
    TensorId tensor) {
  MutexLock lock(mutex_);
  std::vector<absl::Span<const std::byte>> pieces;
  bool anybody = false;
  const Chunks range = plan_->layout.ChunksOf(tensor);
  for (uint32_t c = range.first; c < range.first + range.count; ++c) {
    if (!kept_[c].has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", plan_->layout.tensor(tensor).name, "\" of group \"", plan_->spec.name,
          "\" has no result in place: push it with InPlace, and wait for it"));
    }
    const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
    const size_t element = SizeOf(chunk.dtype);
    const size_t s = chunk.SpanOf(tensor);
    const Span& span = chunk.spans[s];
    const size_t bytes = span.elements * element;
    const bool present = kept_[c]->counts[s] > 0 || holds_parameters();
    anybody = anybody || present;
    if (present) {
      AppendRange(kept_[c]->payload, span.chunk_offset * element, bytes, pieces);
    } else {
      pieces.push_back(absl::MakeConstSpan(ZerosLocked(), bytes));
    }
  }
  if (!anybody) pieces.clear();
  return pieces;
}

absl::StatusOr<std::vector<uint32_t>> GroupRounds::GatheredRanks() const {
  MutexLock lock(mutex_);
  for (uint32_t c = 1; c < chunks_.size(); ++c) {
    if (chunks_[c].contributors == chunks_[0].contributors) continue;
    return absl::AbortedError(
        absl::StrCat("a member of gather \"", plan_->spec.name,
                     "\" was lost half-way: chunk 0 has the contributions of ranks ",
                     absl::StrJoin(chunks_[0].contributors, ", "), ", and chunk ", c,
                     " those of ranks ", absl::StrJoin(chunks_[c].contributors, ", ")));
  }
  return chunks_[0].contributors;
}

absl::Status GroupRounds::EndRound() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].state == ChunkState::kDone) continue;
    return absl::FailedPreconditionError(absl::StrCat("chunk ", c, " of step ", ToNumber(round_),
                                                      " of group \"", plan_->spec.name,
                                                      "\" has no result"));
  }
  round_ = Next(round_);
  BeginRoundLocked();
  return absl::OkStatus();
}

absl::StatusOr<Round> GroupRounds::EndData() {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (round_ == Round{0}) {
    return absl::FailedPreconditionError(absl::StrCat(
        "group \"", plan_->spec.name, "\" has no parameters yet: call Broadcast before End"));
  }
  if (tensors_in_ > 0 && tensors_in_ < tensors_.size()) {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].state != TensorState::kAwaited) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", plan_->spec.tensors[t].name, "\" has not been pushed or skipped in step ",
          ToNumber(round_), " of group \"", plan_->spec.name,
          "\", and others have: push or skip it before End"));
    }
  }
  data_ended_ = true;
  return tensors_in_ == 0 ? Previous(round_) : round_;
}

absl::Status GroupRounds::CheckIdle() const {
  MutexLock lock(mutex_);
  // A step that cannot complete any more is no reason to stay, and neither is one
  // that is complete.
  if (tensors_in_ == 0 || failures_ > 0) return absl::OkStatus();
  if (std::all_of(chunks_.begin(), chunks_.end(),
                  [](const ChunkRound& c) { return c.state == ChunkState::kDone; })) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("step ", ToNumber(round_), " of group \"",
                                                    plan_->spec.name,
                                                    "\" is under way: call WaitStep first"));
}

std::optional<Round> GroupRounds::Progress() const {
  MutexLock lock(mutex_);
  if (tensors_in_ > 0 && failures_ == 0) return round_;
  if (round_ == Round{0}) return std::nullopt;
  return Previous(round_);
}

}  // namespace syncgrads::client
