#include "client/session/registered_group.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/rounds/optimizer_state.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "common/kernels/copy.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

std::map<std::string, TensorId, std::less<>> IndexByName(const GroupSpec& spec) {
  std::map<std::string, TensorId, std::less<>> by_name;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) by_name[spec.tensors[t].name] = TensorId{t};
  return by_name;
}

}  // namespace

RegisteredGroup::RegisteredGroup(std::shared_ptr<GroupRounds> rounds, Session& session)
    : rounds_(std::move(rounds)), session_(session), by_name_(IndexByName(rounds_->plan().spec)) {}

absl::StatusOr<TensorId> RegisteredGroup::Find(absl::string_view name) const {
  auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("group \"", spec().name, "\" has no tensor \"", name, "\""));
}

absl::Status RegisteredGroup::CheckTensor(TensorId tensor) const {
  if (ToNumber(tensor) < spec().tensors.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", ToNumber(tensor), " of group \"",
                                                 spec().name, "\", which has ",
                                                 spec().tensors.size(), " tensors"));
}

absl::Status RegisteredGroup::CheckBegun() const {
  if (rounds_->round() != Round{0}) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("group \"", spec().name,
                   "\" has its optimizer on the servers, which have no parameters yet: call "
                   "Group::Broadcast first"));
}

absl::Status RegisteredGroup::CheckOneForEach(size_t pointers) const {
  if (pointers == spec().tensors.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(pointers, " pointers for group \"", spec().name,
                                                 "\", which has ", spec().tensors.size(),
                                                 " tensors"));
}

absl::Span<std::byte> RegisteredGroup::ResultOf(TensorId tensor, void* result) const {
  if (result == nullptr) return {};
  return absl::MakeSpan(static_cast<std::byte*>(result), layout().tensor(tensor).bytes());
}

absl::Status RegisteredGroup::SetWeight(double weight) {
  SYNCGRADS_RETURN_IF_ERROR(CheckBegun());
  return rounds_->SetWeight(weight);
}

absl::Status RegisteredGroup::CheckPush(TensorId tensor, const void* values) const {
  SYNCGRADS_RETURN_IF_ERROR(CheckBegun());
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  if (values != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("null values for tensor \"", layout().tensor(tensor).name, "\" of group \"",
                   spec().name, "\": to contribute nothing, call Skip"));
}

absl::Status RegisteredGroup::Push(TensorId tensor, const void* values, size_t bytes,
                                   void* result) {
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(tensor, values));
  return rounds_->Push(tensor, absl::MakeConstSpan(static_cast<const std::byte*>(values), bytes),
                       ResultOf(tensor, result));
}

absl::Status RegisteredGroup::Push(TensorId tensor, const void* values, size_t bytes,
                                   InPlace in_place) {
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(tensor, values));
  return rounds_->Push(tensor, absl::MakeConstSpan(static_cast<const std::byte*>(values), bytes),
                       ResultOf(tensor, in_place));
}

absl::Status RegisteredGroup::CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                                          void* memory) {
  return CopyAndPush(tensor, values, bytes, memory,
                     absl::MakeSpan(static_cast<std::byte*>(memory), bytes));
}

absl::Status RegisteredGroup::CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                                          void* memory, InPlace in_place) {
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  return CopyAndPush(tensor, values, bytes, memory, ResultOf(tensor, in_place));
}

absl::Status RegisteredGroup::CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                                          void* memory, GroupRounds::Destination result) {
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(tensor, values));
  SYNCGRADS_RETURN_IF_ERROR(CheckPush(tensor, memory));
  const auto to = absl::MakeSpan(static_cast<std::byte*>(memory), bytes);
  if (values != memory) {
    const auto from = absl::MakeConstSpan(static_cast<const std::byte*>(values), bytes);
    SYNCGRADS_RETURN_IF_ERROR(rounds_->CheckPush(tensor, from));
    CopyFar(to.data(), from.data(), bytes);
  }
  return rounds_->Push(tensor, to, result);
}

absl::Status RegisteredGroup::Skip(TensorId tensor, void* result) {
  SYNCGRADS_RETURN_IF_ERROR(CheckBegun());
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  return rounds_->Skip(tensor, ResultOf(tensor, result));
}

absl::Status RegisteredGroup::Skip(TensorId tensor, InPlace in_place) {
  SYNCGRADS_RETURN_IF_ERROR(CheckBegun());
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  return rounds_->Skip(tensor, ResultOf(tensor, in_place));
}

absl::StatusOr<std::vector<absl::Span<const std::byte>>> RegisteredGroup::InPlaceResult(
    TensorId tensor) const {
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  return rounds_->InPlaceResult(tensor);
}

std::vector<Group::SharedResults> RegisteredGroup::FindSharedResults() const {
  std::vector<SharedResults> all;
  for (std::shared_ptr<const MappedResults>& mapped : rounds_->FindMapped()) {
    const absl::Span<const std::byte> bytes = mapped->bytes();
    all.push_back({std::move(mapped), bytes});
  }
  return all;
}

absl::Status RegisteredGroup::UseResults(absl::Span<const TensorId> tensors,
                                         absl::Span<void*> places) {
  if (tensors.size() != places.size()) {
    return absl::InvalidArgumentError(absl::StrCat(places.size(), " places for ", tensors.size(),
                                                   " tensors of group \"", spec().name, "\""));
  }
  std::vector<GroupRounds::PlacedResult> results;
  results.reserve(tensors.size());
  std::set<std::shared_ptr<const MappedResults>> mappings;
  for (size_t i = 0; i < tensors.size(); ++i) {
    SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensors[i]));
    if (places[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("null place for tensor \"",
                                                     layout().tensor(tensors[i]).name,
                                                     "\" of group \"", spec().name, "\""));
    }
    SYNCGRADS_ASSIGN_OR_RETURN(GroupRounds::PlacedResult result, rounds_->FindInPlace(tensors[i]));
    // A tensor in more than one piece is copied.
    if (result.pieces.size() != 1) result.mapped = nullptr;
    if (result.mapped != nullptr) mappings.insert(result.mapped);
    results.push_back(std::move(result));
  }
  for (const std::shared_ptr<const MappedResults>& mapped : mappings) {
    mapped->DiscardChanges();
    MutexLock lock(mutex_);
    if (std::find(used_results_.begin(), used_results_.end(), mapped) == used_results_.end()) {
      used_results_.push_back(mapped);
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const GroupRounds::PlacedResult& result = results[i];
    std::byte* const changeable = result.mapped == nullptr
                                      ? nullptr
                                      : result.mapped->ChangeableAt(result.pieces.front().data());
    if (changeable != nullptr) {
      places[i] = changeable;
      continue;
    }
    auto* to = static_cast<std::byte*>(places[i]);
    for (const absl::Span<const std::byte>& piece : result.pieces) {
      CopyFar(to, piece.data(), piece.size());
      to += piece.size();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Contributors> RegisteredGroup::Wait(TensorId tensor, absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
  const GroupRounds::Chunks chunks = rounds_->ChunksOf(tensor);
  const absl::Time deadline = session_.timers().Now() + timeout;
  SYNCGRADS_RETURN_IF_ERROR(rounds_->CheckSent(chunks));
  SYNCGRADS_RETURN_IF_ERROR(rounds_->SendRefusedAgain(chunks, deadline));
  SYNCGRADS_RETURN_IF_ERROR(AwaitAnswers(*rounds_, chunks, timeout, *session_.data_plane()));
  SYNCGRADS_RETURN_IF_ERROR(TakeRateFactor(rounds_->EpochOf(chunks), deadline));
  return rounds_->CountContributors(tensor);
}

absl::Status RegisteredGroup::TakeRateFactor(uint64_t epoch, absl::Time deadline) {
  if (!HasLearningRate(spec())) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    if (rate_epoch_ == epoch) return absl::OkStatus();
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const double factor,
                             session_.epochs().AwaitRateFactor(epoch, deadline));
  MutexLock lock(mutex_);
  rate_factor_ = factor;
  rate_epoch_ = epoch;
  return absl::OkStatus();
}

double RegisteredGroup::learning_rate_factor() const {
  MutexLock lock(mutex_);
  return rate_factor_;
}

absl::StatusOr<TensorId> RegisteredGroup::NextCompletion(absl::Duration timeout) {
  // Without a timeout, a caller asks often, and does not want to be put to sleep.
  if (timeout <= absl::ZeroDuration()) return rounds_->AwaitNext(absl::InfinitePast());
  return rounds_->AwaitNext(session_.timers().Now() + timeout);
}

std::vector<Contributors> RegisteredGroup::Count() {
  std::vector<Contributors> contributors;
  contributors.reserve(spec().tensors.size());
  for (uint32_t t = 0; t < spec().tensors.size(); ++t) {
    contributors.push_back(rounds_->CountContributors(TensorId{t}));
  }
  return contributors;
}

absl::StatusOr<std::vector<Contributors>> RegisteredGroup::WaitStep(absl::Duration timeout) {
  const absl::Time deadline = session_.timers().Now() + timeout;
  SYNCGRADS_RETURN_IF_ERROR(CheckBegun());
  const GroupRounds::Chunks chunks = rounds_->AllChunks();
  SYNCGRADS_RETURN_IF_ERROR(rounds_->CheckSent(chunks));
  SYNCGRADS_RETURN_IF_ERROR(rounds_->SendRefusedAgain(chunks, deadline));
  const std::shared_ptr<StateHandover> state = handover();
  if (state != nullptr) state->Open(rounds_->round());
  absl::Status status = AwaitAnswers(*rounds_, chunks, timeout, *session_.data_plane());
  // The caller may change the state after this returns, unless the wait has to be repeated. So the
  // donor must stop reading it.
  if (state != nullptr) {
    const absl::Status closed = state->Close(deadline);
    if (!closed.ok() && !absl::IsDeadlineExceeded(status)) status = closed;
  }
  SYNCGRADS_RETURN_IF_ERROR(status);
  if (std::holds_alternative<Optimizer>(spec().rule)) {
    SYNCGRADS_RETURN_IF_ERROR(CatchUp(deadline));
  }
  GroupRounds::Closing closing = rounds_->FindClosing();
  SYNCGRADS_RETURN_IF_ERROR(TakeRateFactor(closing.epoch, deadline));
  std::vector<Contributors> contributors = Count();
  const Round ended = rounds_->round();
  const Round newest = rounds_->FindNewestClosed();
  if (rounds_->awaits_outcome()) {
    SYNCGRADS_RETURN_IF_ERROR(SettleResiduals(closing.epoch, deadline));
  }
  SYNCGRADS_RETURN_IF_ERROR(rounds_->EndRound());
  session_.OnStepEnded(rounds_->plan().id);
  MutexLock lock(mutex_);
  last_step_ = ended;
  last_closing_ = std::move(closing);
  newest_closed_ = std::max(newest_closed_, newest);
  return contributors;
}

absl::Status RegisteredGroup::CatchUp(absl::Time deadline) {
  for (Round newest; (newest = rounds_->FindNewestClosed()) > rounds_->round();) {
    SYNCGRADS_RETURN_IF_ERROR(rounds_->Overtake(newest, deadline));
    SYNCGRADS_RETURN_IF_ERROR(AwaitAnswers(*rounds_, rounds_->AllChunks(),
                                           deadline - session_.timers().Now(),
                                           *session_.data_plane()));
  }
  return absl::OkStatus();
}

absl::Status RegisteredGroup::SettleResiduals(uint64_t newest_epoch, absl::Time deadline) {
  // No chunk has closed in a later epoch. Earlier epochs have been received too; those that are too
  // old are not kept.
  SYNCGRADS_RETURN_IF_ERROR(session_.epochs().Await(newest_epoch, deadline).status());
  rounds_->KeepResiduals([&](uint64_t number) -> std::optional<uint32_t> {
    const absl::StatusOr<Epoch> epoch = session_.epochs().Await(number, deadline);
    if (!epoch.ok() || epoch->number != number) return std::nullopt;
    return epoch->RankOf(session_.epochs().self());
  });
  return absl::OkStatus();
}

uint64_t RegisteredGroup::steps_behind() const {
  const uint64_t next = step();
  MutexLock lock(mutex_);
  return ToNumber(newest_closed_) < next ? 0 : ToNumber(newest_closed_) - next + 1;
}

absl::Status RegisteredGroup::End(absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  SYNCGRADS_ASSIGN_OR_RETURN(const Round last_round, rounds_->EndData());
  return session_.EndGroup(*rounds_, last_round, timeout);
}

absl::Status RegisteredGroup::SkipAll(absl::Span<void* const> results) {
  SYNCGRADS_RETURN_IF_ERROR(CheckOneForEach(results.size()));
  for (uint32_t t = 0; t < results.size(); ++t) {
    SYNCGRADS_RETURN_IF_ERROR(Skip(TensorId{t}, results[t]));
  }
  return absl::OkStatus();
}

absl::Status RegisteredGroup::Broadcast(uint32_t root, absl::Span<void* const> tensors,
                                        absl::Duration timeout) {
  const absl::Time deadline = session_.timers().Now() + timeout;
  if (!std::holds_alternative<Optimizer>(spec().rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", spec().name,
                     "\" keeps no parameters on the servers: call Client::BroadcastAll"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckOneForEach(tensors.size()));
  if (rounds_->round() != Round{0}) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", spec().name, "\" already has its parameters"));
  }
  if (root >= session_.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("root ", root,
                                                   " of a broadcast is out of range among ",
                                                   session_.world_size(), " members"));
  }
  // If an earlier call's deadline passed, everything has been pushed, and this call only waits.
  if (!rounds_->Progress().has_value()) {
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const absl::Span<std::byte> memory = ResultOf(TensorId{t}, tensors[t]);
      SYNCGRADS_RETURN_IF_ERROR(session_.rank() == root ? rounds_->Push(TensorId{t}, memory, memory)
                                                        : rounds_->Skip(TensorId{t}, memory));
    }
  }
  SYNCGRADS_RETURN_IF_ERROR(
      AwaitAnswers(*rounds_, rounds_->AllChunks(), timeout, *session_.data_plane()));
  if (rounds_->FindNewestClosed() > rounds_->round()) {
    // The answer to round 0 was lost, and the others have continued without this worker.
    SYNCGRADS_RETURN_IF_ERROR(CatchUp(deadline));
  }
  return rounds_->EndRound();
}

absl::Status RegisteredGroup::Restore(uint32_t root, absl::Span<void* const> tensors,
                                      const OptimizerState& state, absl::Duration timeout) {
  const bool keeps_state = std::holds_alternative<Optimizer>(spec().rule);
  if (keeps_state && session_.rank() == root) {
    SYNCGRADS_RETURN_IF_ERROR(CheckState(rounds_->plan(), state));
    rounds_->SetRestored(state);
  }
  return Broadcast(root, tensors, timeout);
}

absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> RegisteredGroup::SnapshotOptimizer(
    absl::Duration timeout) {
  if (!std::holds_alternative<Optimizer>(spec().rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", spec().name, "\" has no optimizer on the servers"));
  }
  Round last;
  {
    MutexLock lock(mutex_);
    last = last_step_;
  }
  if (last == Round{0}) {
    return absl::FailedPreconditionError(
        absl::StrCat("no step of group \"", spec().name, "\" has ended"));
  }
  std::vector<std::unique_ptr<OptimizerReader>> readers =
      session_.data_plane()->OpenOptimizer(rounds_->plan(), last, timeout);
  if (readers.empty()) {
    return absl::UnimplementedError("this client's transport does not support reading optimizers");
  }
  return Hold(rounds_->shared_plan(), std::move(readers));
}

}  // namespace syncgrads::client
