#include "worker/trainer/training_group.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/contract/contract.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "worker/base/trace.h"
#include "worker/job/consistency.h"
#include "worker/train/compression.h"

namespace syncgrads {
namespace {

// No parameter can have this name: parameters' names are paths of layers.
constexpr const char* kDueTensor = "checkpoint due";

// The first layer's gradient is computed last, and its average is needed first. The shorter its
// chunk is, the shorter is this wait. A small model is one chunk: several would cost more than the
// wait.
constexpr uint32_t kFirstChunkBytes = 64 << 10;
constexpr uint64_t kSmallModelBytes = 4 << 20;

// A thread that sleeps is woken up to 0.1 ms late, in which a device has nothing to do. So the
// thread polls for results first, longer than a server on this host needs for a short chunk.
constexpr absl::Duration kPoll = absl::Microseconds(500);

absl::StatusOr<GroupSpec> SpecOf(const TrainingRun& run, const Replica& replica) {
  const v1::JobFile& job = run.job;
  GroupSpec spec;
  spec.name = run.options.initialisation == 0
                  ? "model"
                  : absl::StrCat("model/initialisation", run.options.initialisation);
  spec.chunk_bytes = job.chunk_bytes();
  spec.one_epoch = run.batches->depends_on_members();
  spec.non_finite = OnBadOf(job.gradient_checks().non_finite());
  spec.policy = PolicyOf(job.consistency());
  if (job.consistency().has_local_steps()) {
    spec.rule = OuterOptimizerOf(job.consistency().local_steps());
  } else if (run.optimizes_on_servers()) {
    SYNCGRADS_ASSIGN_OR_RETURN(spec.rule, FromProto(job.optimizer()));
    spec.clip_norm = job.clip_norm();
    spec.schedule = run.rate.schedule;
    spec.factors.assign(replica.factors().begin(), replica.factors().end());
  } else {
    spec.rule = job.gradient_reduction() == v1::SUM ? Reduction::kSum : Reduction::kAverage;
  }
  spec.members_scale_rate = !run.optimizes_on_servers();
  uint64_t bytes = 0;
  for (const HostParameter& parameter : replica.parameters()) {
    spec.tensors.push_back(parameter.spec);
    bytes += parameter.spec.bytes();
  }
  if (bytes > kSmallModelBytes) spec.first_chunk_bytes = kFirstChunkBytes;
  if (job.has_checkpoint()) {
    // Inserts the tensor before the last parameter. They share a chunk, and the last
    // layer's gradient is sent first.
    spec.tensors.insert(spec.tensors.end() - 1, {kDueTensor, spec.tensors.back().dtype, {1}});
    if (!spec.factors.empty()) spec.factors.emplace(spec.factors.end() - 1);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(spec.compression, CompressionOf(job, spec.tensors));
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingGroup>> TrainingGroup::Register(TrainingRun& run,
                                                                       Replica& replica) {
  SYNCGRADS_ASSIGN_OR_RETURN(const GroupSpec spec, SpecOf(run, replica));
  const bool compresses = std::any_of(spec.compression.begin(), spec.compression.end(),
                                      [](const Compression& one) { return one != Compression(); });
  SYNCGRADS_ASSIGN_OR_RETURN(Group* const group, run.team.Register(spec));
  return absl::WrapUnique(new TrainingGroup(run, replica, *group, compresses));
}

TrainingGroup::TrainingGroup(TrainingRun& run, Replica& replica, Group& group, bool compresses)
    : run_(run), replica_(replica), group_(group), compresses_(compresses) {
  const std::vector<TensorSpec>& tensors = group.spec().tensors;
  parameters_.resize(tensors.size());
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].name == kDueTensor) {
      due_tensor_ = TensorId{t};
      continue;
    }
    parameters_[t] = tensors_.size();
    tensors_.push_back(TensorId{t});
    push_names_.push_back(InternTraceName(absl::StrCat("push ", tensors[t].name)));
    wait_names_.push_back(InternTraceName(absl::StrCat("wait for ", tensors[t].name)));
  }
  Begin();
}

absl::Status TrainingGroup::Push(size_t parameter) {
  const MutableTensor& gradient = replica_.parameters()[parameter].gradient;
  pushed_[parameter] = true;
  replica_.ForgetGradient(parameter);
  const PhaseClock::Scope pushes(run_.phases, &StepTimes::push);
  const Trace::Span span(run_.trace(run_.steps), Trace::Row::kGradients, push_names_[parameter]);
  const size_t bytes = replica_.parameters()[parameter].spec.bytes();
  const TensorId tensor = tensors_[parameter];
  if (in_place_) return group_.Push(tensor, gradient.data, bytes, InPlaceOf(parameter));
  return group_.Push(tensor, gradient.data, bytes, ResultOf(parameter));
}

absl::Status TrainingGroup::PushAll() {
  for (size_t i = tensors_.size(); i-- > 0;) SYNCGRADS_RETURN_IF_ERROR(Push(i));
  return absl::OkStatus();
}

absl::Status TrainingGroup::SkipRest() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!pushed_[i]) SYNCGRADS_RETURN_IF_ERROR(Skip(i));
  }
  return absl::OkStatus();
}

absl::Status TrainingGroup::Skip(size_t parameter) {
  replica_.ForgetGradient(parameter);
  if (in_place_) return group_.Skip(tensors_[parameter], InPlaceOf(parameter));
  return group_.Skip(tensors_[parameter], ResultOf(parameter));
}

absl::Status TrainingGroup::SkipAll() {
  // Waits until the device has read the parameters, which results may overwrite. Without
  // a gradient there is no download that would show this.
  SYNCGRADS_RETURN_IF_ERROR(replica_.Finish());
  if (due_tensor_.has_value()) {
    SYNCGRADS_RETURN_IF_ERROR(group_.Skip(*due_tensor_, replica_.zero()));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) SYNCGRADS_RETURN_IF_ERROR(Skip(i));
  return absl::OkStatus();
}

absl::Status TrainingGroup::OfferCheckpoint(bool is_due) {
  void* const zero = replica_.zero();
  if (!is_due) return group_.Skip(*due_tensor_, zero);
  return group_.Push(*due_tensor_, zero, group_.spec().tensors[ToNumber(*due_tensor_)].bytes(),
                     zero);
}

absl::StatusOr<Contributors> TrainingGroup::Wait(size_t parameter) {
  SYNCGRADS_RETURN_IF_ERROR(TakeFailure());
  const Trace::Span span(run_.trace(run_.steps + 1), Trace::Row::kResults, wait_names_[parameter]);
  const PhaseClock::Scope waits(run_.phases, &StepTimes::wait);
  if (replica_.uploads_gradients()) PollFor(parameter);
  return group_.Wait(tensors_[parameter], run_.options.step_timeout);
}

void TrainingGroup::PollFor(size_t parameter) const {
  const absl::Time begin = MonotonicNow();
  while (!group_.IsAnswered(tensors_[parameter]) && MonotonicNow() - begin < kPoll) {
    std::this_thread::yield();
  }
}

absl::StatusOr<std::optional<size_t>> TrainingGroup::NextArrived() {
  while (failed_.ok()) {
    const absl::StatusOr<TensorId> tensor = group_.NextCompletion(absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(tensor.status()) || absl::IsNotFound(tensor.status())) {
      return std::nullopt;
    }
    SYNCGRADS_RETURN_IF_ERROR(tensor.status());
    const std::optional<size_t> parameter = parameters_[ToNumber(*tensor)];
    if (!parameter.has_value()) continue;
    const absl::StatusOr<Contributors> contributors =
        group_.Wait(*tensor, run_.options.step_timeout);
    if (contributors.ok() && contributors->most > 0) return parameter;
    if (contributors.ok()) continue;
    // One of the tensor's chunks has failed, and another one is not complete yet: the error will
    // be returned when it is.
    if (!absl::IsFailedPrecondition(contributors.status())) failed_ = contributors.status();
    return std::nullopt;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<Contributors>> TrainingGroup::WaitStep(absl::Duration timeout,
                                                                  bool* left_out) {
  SYNCGRADS_RETURN_IF_ERROR(TakeFailure());
  std::vector<Contributors> contributors;
  {
    const Trace::Span span(run_.trace(run_.steps), Trace::Row::kResults, "wait for step",
                           group_.step());
    const PhaseClock::Scope waits(run_.phases, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(contributors, group_.WaitStep(timeout));
  }
  size_t tensors = 0;
  std::string first;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!contributors[ToNumber(tensors_[i])].left_out) continue;
    if (tensors++ == 0) first = replica_.parameters()[i].spec.name;
  }
  if (tensors > 0) run_.guard.NoteLeftOut(first, tensors);
  if (left_out != nullptr) *left_out = tensors > 0;
  run_.rounds = group_.step() - 1;
  return contributors;
}

absl::Status TrainingGroup::EndAndFollow(absl::FunctionRef<absl::Status()> follow) {
  SYNCGRADS_RETURN_IF_ERROR(group_.End(run_.options.step_timeout));
  while (true) {
    const absl::Status followed = follow();
    if (absl::IsOutOfRange(followed)) return absl::OkStatus();
    SYNCGRADS_RETURN_IF_ERROR(followed);
  }
}

void* TrainingGroup::ResultOf(size_t parameter) const {
  const HostParameter& one = replica_.parameters()[parameter];
  return run_.has_parameters_on_servers() ? one.values : one.gradient.data;
}

std::vector<void*> TrainingGroup::Values() const {
  std::vector<void*> values(group_.spec().tensors.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    values[ToNumber(tensors_[i])] = replica_.parameters()[i].values;
  }
  if (due_tensor_.has_value()) values[ToNumber(*due_tensor_)] = replica_.zero();
  return values;
}

}  // namespace syncgrads
