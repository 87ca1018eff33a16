#include "client/group_rounds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/contribution.h"
#include "client/optimizer_state.h"
#include "common/aligned_buffer.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// Below this, a payload costs less to send than to describe.
constexpr size_t kMinSharedBytes = 16 << 10;

// Copies a payload that has cut elements, or such as are not aligned, to memory
// where they are whole.
void MakeWhole(size_t element, Pieces& payload, std::shared_ptr<const void>& memory) {
  const auto is_whole = [element](absl::Span<const std::byte> piece) {
    return reinterpret_cast<uintptr_t>(piece.data()) % element == 0 && piece.size() % element == 0;
  };
  if (std::all_of(payload.begin(), payload.end(), is_whole)) return;
  auto whole = std::make_shared<AlignedBuffer>(TotalBytes(payload));
  Scatter(payload, {{whole->data(), whole->size()}});
  payload = {absl::MakeConstSpan(whole->data(), whole->size())};
  memory = std::move(whole);
}

}  // namespace

GroupRounds::GroupRounds(std::shared_ptr<const GroupPlan> plan, Identity identity,
                         const std::atomic<uint64_t>& epoch, Outbox& outbox)
    : plan_(std::move(plan)),
      identity_(identity),
      epoch_(epoch),
      outbox_(outbox),
      staging_(plan_->layout),
      compressor_(*plan_),
      first_server_(plan_->servers[ToNumber(identity.member) % plan_->servers.size()]),
      round_(FirstRound(plan_->spec.rule)),
      tensors_(plan_->layout.tensors().size()),
      chunks_(plan_->layout.chunks().size()),
      kept_(chunks_.size()) {
  MutexLock lock(mutex_);
  BeginRoundLocked();
}

void GroupRounds::BeginRoundLocked() {
  weight_ = 1;
  whole_ = false;
  pinned_epoch_.reset();
  failures_ = 0;
  tensors_in_ = 0;
  tensors_ = std::vector<TensorRound>(tensors_.size());
  chunks_ = std::vector<ChunkRound>(chunks_.size());
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c].tensors_awaited = plan_->layout.chunk(ChunkId{c}).spans.size();
    compressor_.Discard(ChunkId{c});
  }
}

Round GroupRounds::round() const {
  MutexLock lock(mutex_);
  return round_;
}

void GroupRounds::SendWhole() {
  MutexLock lock(mutex_);
  whole_ = true;
}

absl::Status GroupRounds::SetWeight(double weight) {
  if (!(weight > 0) || !std::isfinite(weight)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight ", weight, " of group \"", plan_->spec.name, "\" is not positive and finite"));
  }
  MutexLock lock(mutex_);
  if (tensors_in_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("call SetWeight before the first push of step ", ToNumber(round_),
                     " of group \"", plan_->spec.name, "\""));
  }
  weight_ = weight;
  return absl::OkStatus();
}

void GroupRounds::SetRestored(const OptimizerState& state) {
  MutexLock lock(mutex_);
  restored_ = &state;
  restored_updates_.resize(chunks_.size());
}

absl::Status GroupRounds::Push(TensorId tensor, absl::Span<const std::byte> values,
                               Destination result) {
  return Contribute(tensor, TensorState::kPushed, values, result);
}

absl::Status GroupRounds::Skip(TensorId tensor, Destination result) {
  return Contribute(tensor, TensorState::kSkipped, {}, result);
}

absl::Status GroupRounds::Contribute(TensorId tensor, TensorState state,
                                     absl::Span<const std::byte> values, Destination result) {
  const GroupSpec& spec = plan_->spec;
  if (ToNumber(tensor) >= spec.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", ToNumber(tensor), " of group \"",
                                                   spec.name, "\", which has ",
                                                   spec.tensors.size()));
  }
  const TensorSpec& described = plan_->layout.tensor(tensor);
  if (state == TensorState::kPushed && values.size() != described.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", described.name, "\" has ", values.size(), " bytes, and is ",
        ToString(described), " with ", described.bytes(), " bytes in group \"", spec.name, "\""));
  }
  std::vector<Departure> departures;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (data_ended_ && state == TensorState::kPushed) {
      return absl::FailedPreconditionError(
          absl::StrCat("this worker has ended its data for group \"", spec.name, "\": tensor \"",
                       described.name, "\" can only be skipped"));
    }
    // A skip is nobody's, and neither are the first parameters.
    if (spec.one_epoch && state == TensorState::kPushed && round_ > Round{0} &&
        !pinned_epoch_.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("a contribution to step ", ToNumber(round_), " of group \"", spec.name,
                       "\" depends on its members: call BeginStep first"));
    }
    TensorRound& mine = tensors_[ToNumber(tensor)];
    if (mine.state != TensorState::kAwaited) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", described.name, "\" has been ",
          mine.state == TensorState::kPushed ? "pushed" : "skipped", " in step ", ToNumber(round_),
          " of group \"", spec.name, "\": call WaitStep to begin the next"));
    }
    mine = {state, values, result};
    ++tensors_in_;
    const Chunks range = plan_->layout.ChunksOf(tensor);
    for (uint32_t c = range.first; c < range.first + range.count; ++c) {
      if (--chunks_[c].tensors_awaited > 0) continue;
      departures.push_back(CompleteLocked(c));
    }
  }
  BeginWithAnother(departures);
  for (Departure& departure : departures) Depart(std::move(departure));
  return absl::OkStatus();
}

void GroupRounds::BeginWithAnother(std::vector<Departure>& departures) const {
  const auto begin = std::find_if(
      departures.begin(), departures.end(),
      [this](const Departure& departure) { return departure.server == first_server_; });
  if (begin != departures.end()) std::rotate(departures.begin(), begin, departures.end());
}

bool GroupRounds::DepartEncoded(Departure& departure) {
  // Round 0 is that of the first parameters.
  if (departure.header.skip || departure.key.round == Round{0}) return false;
  const ChunkId chunk = departure.key.chunk;
  std::optional<Compressor::Encoded> encoded =
      compressor_.Encode(chunk, departure.header.absent_spans, departure.spans, departure.whole);
  if (!encoded.has_value()) return false;
  departure.header.codec = encoded->codec;
  outbox_.Send(departure.server, departure.key, departure.header.epoch,
               MakeEncodedContribution(
                   departure.header, std::move(encoded->bytes), encoded->size,
                   [self = shared_from_this(), c = ToNumber(chunk)] { self->OnReleased(c); }));
  if (!encoded->notice.empty()) outbox_.OnCodecReplaced(encoded->notice);
  return true;
}

void GroupRounds::Depart(Departure departure) {
  if (DepartEncoded(departure)) return;
  SharedBuffers* shared = outbox_.SharedWith(departure.server);
  const size_t bytes = TotalBytes(departure.spans);
  // What restores a chunk is longer than what is staged of one, and goes but once.
  if (bytes < kMinSharedBytes || bytes > plan_->layout.chunk(departure.key.chunk).bytes()) {
    shared = nullptr;
  }
  if (shared != nullptr && Staging::IsNeeded(departure.spans, *shared)) {
    departure.spans = staging_.Copy(*shared, departure.key.chunk, std::move(departure.spans));
  }
  const uint32_t c = ToNumber(departure.key.chunk);
  outbox_.Send(departure.server, departure.key, departure.header.epoch,
               MakeContribution(
                   departure.header, departure.spans,
                   [self = shared_from_this(), c] { self->OnReleased(c); }, shared));
}

GroupRounds::Departure GroupRounds::CompleteLocked(uint32_t c) {
  ChunkRound& state = chunks_[c];
  const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
  const size_t element = SizeOf(chunk.dtype);
  PushHeader header;
  header.generation = identity_.generation;
  header.group = plan_->id;
  header.chunk = ChunkId{c};
  header.round = round_;
  header.member = identity_.member;
  header.incarnation = identity_.incarnation;
  header.epoch = pinned_epoch_.value_or(epoch_.load());
  header.weight = weight_ == 1 ? 0 : weight_;
  header.without_result = true;
  std::vector<absl::Span<const std::byte>> present;
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    const TensorRound& tensor = tensors_[ToNumber(span.tensor)];
    if (tensor.state == TensorState::kPushed) {
      present.push_back(
          tensor.values.subspan(span.tensor_offset * element, span.elements * element));
    } else {
      header.absent_spans.push_back(s);
    }
    if (!tensor.result.buffer.empty() || tensor.result.in_place) header.without_result = false;
  }
  if (!present.empty() && restored_ != nullptr && round_ == Round{0}) {
    for (absl::Span<const std::byte> span :
         RestoredSpans(chunk, *restored_, restored_updates_[c])) {
      present.push_back(span);
    }
  }
  if (present.empty()) {
    header.skip = true;
    header.weight = 0;
    header.absent_spans.clear();
  }
  state.state = ChunkState::kSent;
  state.without_result = header.without_result;
  state.in_use = true;
  ++in_use_;
  return {plan_->servers[c],
          {plan_->id, ChunkId{c}, round_},
          std::move(header),
          std::move(present),
          whole_,
          std::exchange(kept_[c], std::nullopt)};
}

absl::Status GroupRounds::CheckUpdateLocked(const Chunk& chunk, const ChunkRound& state,
                                            const UpdateFrame& update) const {
  const UpdateHeader& header = update.header;
  const size_t payload = TotalBytes(update.payload);
  std::string what;
  if (!header.error.ok()) {
    return absl::OkStatus();
  } else if (header.generation != identity_.generation) {
    what = absl::StrCat("generation ", ToNumber(header.generation), ", and the job's is ",
                        ToNumber(identity_.generation));
  } else if (header.counts.size() != chunk.spans.size()) {
    what = absl::StrCat(header.counts.size(), " counts, and the chunk has ", chunk.spans.size(),
                        " spans");
  } else {
    const bool nothing =
        !holds_parameters() && std::all_of(header.counts.begin(), header.counts.end(),
                                           [](uint32_t count) { return count == 0; });
    const size_t results = gathers() ? header.contributors.size() : 1;
    const size_t whole = results * compressor_.ResultBytes(header.chunk, header.codec);
    const size_t expected = state.without_result || nothing ? 0 : whole;
    // What nobody asked for may come all the same; it is not looked at.
    const bool unasked = expected == 0 && payload == whole;
    if (payload != expected && !unasked) {
      what = absl::StrCat(payload, " bytes of payload, and ", expected, " were expected");
    }
  }
  if (what.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", ToNumber(header.chunk),
                                                 " of group \"", plan_->spec.name, "\" has ",
                                                 what));
}

absl::Status GroupRounds::OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory) {
  const uint32_t c = ToNumber(update.header.chunk);
  if (c >= plan_->layout.chunks().size()) {
    return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", c, " of group \"",
                                                   plan_->spec.name, "\", which has ",
                                                   plan_->layout.chunks().size()));
  }
  const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
  if (const absl::Status encoded =
          compressor_.CheckResult(ChunkId{c}, update.header.codec, update.payload);
      !encoded.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("answer for chunk ", c, " of group \"",
                                                   plan_->spec.name, "\": ", encoded.message()));
  }
  MutexLock lock(mutex_);
  ChunkRound& state = chunks_[c];
  if (update.header.round != round_ || state.state != ChunkState::kSent ||
      state.answer.has_value()) {
    return absl::OkStatus();
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckUpdateLocked(chunk, state, update));
  if (!update.header.error.ok()) {
    FailChunkLocked(c, update.header.error);
    return absl::OkStatus();
  }
  if (gathers() && TotalBytes(update.payload) > 0) {
    for (const Span& span : chunk.spans) {
      const TensorSpec& tensor = plan_->layout.tensor(span.tensor);
      const size_t room = tensors_[ToNumber(span.tensor)].result.buffer.size();
      if (room > 0 && room / tensor.bytes() < update.header.contributors.size()) {
        FailChunkLocked(c, absl::InvalidArgumentError(absl::StrCat(
                               "output of gather \"", plan_->spec.name, "\" has room for ",
                               room / tensor.bytes(), " contributions, and ",
                               update.header.contributors.size(), " members contributed")));
        return absl::OkStatus();
      }
    }
  }
  state.answer = update;
  state.answer_memory = std::move(memory);
  if (state.in_use) return absl::OkStatus();  // OnReleased goes on from here
  FailChunkLocked(c, absl::InternalError("answered after it was let go"));
  return absl::OkStatus();
}

std::vector<Target> GroupRounds::TargetsLocked(uint32_t c) {
  const Chunk& chunk = plan_->layout.chunk(ChunkId{c});
  const UpdateFrame& answer = *chunks_[c].answer;
  const size_t element = SizeOf(chunk.dtype);
  std::vector<Target> targets;
  if (chunks_[c].without_result || TotalBytes(answer.payload) == 0) return targets;
  const size_t copies = gathers() ? answer.header.contributors.size() : 1;
  targets.reserve(copies * chunk.spans.size());
  for (size_t copy = 0; copy < copies; ++copy) {
    for (size_t s = 0; s < chunk.spans.size(); ++s) {
      const Span& span = chunk.spans[s];
      const TensorRound& tensor = tensors_[ToNumber(span.tensor)];
      const bool wanted =
          !tensor.result.buffer.empty() && (answer.header.counts[s] > 0 || holds_parameters());
      const size_t begin =
          copy * plan_->layout.tensor(span.tensor).bytes() + span.tensor_offset * element;
      targets.push_back(
          {wanted ? tensor.result.buffer.data() + begin : nullptr, span.elements * element});
    }
  }
  return targets;
}

bool GroupRounds::IsKeptLocked(uint32_t c) const {
  const std::vector<Span>& spans = plan_->layout.chunk(ChunkId{c}).spans;
  return std::any_of(spans.begin(), spans.end(), [this](const Span& span) {
    return tensors_[ToNumber(span.tensor)].result.in_place;
  });
}

void GroupRounds::OnReleased(uint32_t c) {
  std::vector<Target> targets;
  UpdateFrame answer;
  std::shared_ptr<const void> memory;
  bool kept = false;
  {
    MutexLock lock(mutex_);
    ChunkRound& state = chunks_[c];
    if (state.state != ChunkState::kSent || !state.answer.has_value()) {
      // It has failed, or will presently: the outbox has let go without an answer.
      state.in_use = false;
      --in_use_;
      changed_.NotifyAll();
      return;
    }
    targets = TargetsLocked(c);
    kept = IsKeptLocked(c);
    answer = *std::move(state.answer);
    memory = std::move(state.answer_memory);
    state.answer.reset();
    state.state = ChunkState::kCopying;
  }
  if (answer.header.codec != Codec::kRaw && (!targets.empty() || kept)) {
    auto decoded = std::make_shared<AlignedBuffer>(
        compressor_.Decode(ChunkId{c}, answer.header.codec, answer.payload));
    answer.payload = {absl::MakeConstSpan(decoded->data(), decoded->size())};
    memory = std::move(decoded);
  }
  if (!targets.empty()) Scatter(answer.payload, targets);
  if (kept) MakeWhole(SizeOf(plan_->layout.chunk(ChunkId{c}).dtype), answer.payload, memory);
  // The received buffers go back before anybody hears of the result.
  if (!kept) memory.reset();
  std::string notice;
  {
    MutexLock lock(mutex_);
    ChunkRound& state = chunks_[c];
    if (state.state == ChunkState::kCopying) {
      if (!awaits_outcome()) compressor_.Commit(ChunkId{c});
      if (!whole_) notice = compressor_.Received(ChunkId{c}, answer.header.codec);
    }
  }
  if (!notice.empty()) outbox_.OnCodecReplaced(notice);
  MutexLock lock(mutex_);
  ChunkRound& state = chunks_[c];
  state.in_use = false;
  --in_use_;
  if (state.state == ChunkState::kCopying) {
    state.state = ChunkState::kDone;
    if (kept) kept_[c] = {std::move(answer.payload), std::move(memory), answer.header.counts};
    state.counts = std::move(answer.header.counts);
    state.contributors = std::move(answer.header.contributors);
    state.left_out = std::move(answer.header.left_out);
    state.epoch = answer.header.epoch;
    state.newest = answer.header.newest_round;
  }
  changed_.NotifyAll();
}

void GroupRounds::FailChunkLocked(uint32_t c, absl::Status error) {
  ChunkRound& state = chunks_[c];
  if (state.state == ChunkState::kDone || state.state == ChunkState::kFailed) return;
  state.state = ChunkState::kFailed;
  state.answer.reset();
  state.answer_memory.reset();
  state.error = std::move(error);
  ++failures_;
  changed_.NotifyAll();
}

void GroupRounds::ForgetAll(const std::vector<uint32_t>& chunks, Round round) {
  for (uint32_t c : chunks) outbox_.Forget(plan_->servers[c], {plan_->id, ChunkId{c}, round});
}

void GroupRounds::Fail(absl::Status status) {
  std::vector<uint32_t> forgotten;
  Round round;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    round = round_;
    for (uint32_t c = 0; c < chunks_.size(); ++c) {
      if (chunks_[c].state == ChunkState::kSent) forgotten.push_back(c);
      // What is being copied is the whole answer: it may as well arrive.
      if (chunks_[c].state != ChunkState::kCopying) FailChunkLocked(c, status);
    }
    changed_.NotifyAll();
  }
  ForgetAll(forgotten, round);
}

bool GroupRounds::AwaitReleased(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (in_use_ > 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return in_use_ == 0;
  }
  return true;
}

}  // namespace syncgrads::client
