#include "tests/worker/testing/fake_team.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/kernels/reduce.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string Bytes(const void* data, size_t size) {
  return std::string(static_cast<const char*>(data), size);
}

// Reduces the contributions in rank order. Returns how many workers contributed.
uint32_t ReduceAll(DType dtype, Reduction reduction, const std::vector<FakeContribution>& all,
                   std::string& result) {
  std::vector<WeightedSource> sources;
  for (const FakeContribution& one : all) {
    if (!one.bytes.has_value()) continue;
    sources.push_back({reinterpret_cast<const std::byte*>(one.bytes->data()), one.weight});
    result.resize(one.bytes->size());
  }
  if (!sources.empty()) {
    Reduce(dtype, reduction, sources, result.size() / SizeOf(dtype),
           reinterpret_cast<std::byte*>(result.data()));
  }
  return static_cast<uint32_t>(sources.size());
}

}  // namespace

class FakeGroup : public Group {
 public:
  FakeGroup(FakeJob& job, uint32_t rank, GroupSpec spec, Layout layout)
      : job_(job), rank_(rank), spec_(std::move(spec)), layout_(std::move(layout)) {
    results_.resize(spec_.tensors.size());
    in_place_.resize(spec_.tensors.size());
  }

  const GroupSpec& spec() const override { return spec_; }
  const Layout& layout() const override { return layout_; }
  uint64_t step() const override { return step_; }

  absl::StatusOr<TensorId> Find(absl::string_view name) const override {
    for (uint32_t i = 0; i < spec_.tensors.size(); ++i) {
      if (spec_.tensors[i].name == name) return TensorId{i};
    }
    return absl::NotFoundError(name);
  }

  double learning_rate_factor() const override { return rate_factor_; }

  absl::Status SetWeight(double weight) override {
    weight_ = weight;
    return absl::OkStatus();
  }

  absl::Status Push(TensorId tensor, const void* values, size_t bytes, void* result) override {
    job_.NotePush(values);
    Put(tensor, {Bytes(values, bytes), weight_}, result);
    return absl::OkStatus();
  }

  absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes,
                           void* memory) override {
    std::memmove(memory, values, bytes);
    return Push(tensor, memory, bytes, memory);
  }

  absl::Status CopyAndPush(TensorId tensor, const void* values, size_t bytes, void* memory,
                           InPlace in_place) override {
    std::memmove(memory, values, bytes);
    return Push(tensor, memory, bytes, in_place);
  }

  // Nothing is in shared memory.
  absl::Status Push(TensorId tensor, const void* values, size_t bytes, InPlace in_place) override {
    return Push(tensor, values, bytes, in_place.otherwise);
  }

  absl::Status Skip(TensorId tensor, InPlace in_place) override {
    return Skip(tensor, in_place.otherwise);
  }

  // A result has two pieces, unless it is a single number.
  absl::StatusOr<std::vector<absl::Span<const std::byte>>> InPlaceResult(
      TensorId tensor) const override {
    const uint32_t t = ToNumber(tensor);
    const std::string& result = in_place_[t];
    const void* const buffer = results_[t];
    const size_t size = buffer != nullptr ? spec_.tensors[t].bytes() : result.size();
    const auto* const data =
        static_cast<const std::byte*>(buffer != nullptr ? buffer : result.data());
    const size_t cut = size / 16 * 8;
    std::vector<absl::Span<const std::byte>> pieces;
    if (cut > 0) pieces.push_back({data, cut});
    if (cut < size) pieces.push_back({data + cut, size - cut});
    return pieces;
  }

  std::vector<SharedResults> FindSharedResults() const override { return {}; }

  absl::Status UseResults(absl::Span<const TensorId> tensors, absl::Span<void*> places) override {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string& result = in_place_[ToNumber(tensors[i])];
      std::memcpy(places[i], result.data(), result.size());
    }
    return absl::OkStatus();
  }

  absl::Status Skip(TensorId tensor, void* result) override {
    Put(tensor, {}, result);
    return absl::OkStatus();
  }

  absl::Status SkipAll(absl::Span<void* const> results) override {
    for (uint32_t i = 0; i < results.size(); ++i) Put(TensorId{i}, {}, results[i]);
    return absl::OkStatus();
  }

  absl::StatusOr<Contributors> Wait(TensorId tensor, absl::Duration) override {
    const uint32_t t = ToNumber(tensor);
    const auto arrived = arrived_.find(t);
    if (arrived != arrived_.end()) {
      waited_.insert(t);
      return Contributors{arrived->second, arrived->second};
    }
    if (job_.on_wait_) SYNCGRADS_RETURN_IF_ERROR(job_.on_wait_(rank_, step_, tensor));
    MutexLock lock(job_.mutex_);
    SYNCGRADS_RETURN_IF_ERROR(AwaitLocked());
    const FakeJob::Step& step = job_.StepLocked(step_);
    Deliver(t, step.results[t]);
    waited_.insert(t);
    rate_factor_ = job_.RateFactorLocked(step_);
    return Contributors{step.contributors[t], step.contributors[t]};
  }

  bool IsAnswered(TensorId) const override { return true; }

  bool IsStepAnswered() const override {
    return !job_.on_wait_ || waited_.size() == spec_.tensors.size();
  }

  // Without waiting.
  absl::StatusOr<TensorId> NextCompletion(absl::Duration) override {
    const bool has_early =
        std::holds_alternative<Reduction>(spec_.rule) && job_.corrupted_ != rank_;
    for (uint32_t t = 0; has_early && t < spec_.tensors.size(); ++t) {
      if (arrived_.contains(t)) continue;
      if (job_.on_wait_ && !job_.on_wait_(rank_, step_, TensorId{t}).ok()) continue;
      MutexLock lock(job_.mutex_);
      const FakeJob::Step& step = job_.StepLocked(step_);
      if (!job_.HasAllLocked(step, t)) continue;
      ++job_.early_results_;
      std::string result;
      arrived_[t] = job_.ReduceLocked(step, t, result);
      Deliver(t, result);
      return TensorId{t};
    }
    return absl::DeadlineExceededError("nothing has arrived");
  }

  absl::StatusOr<std::vector<Contributors>> WaitStep(absl::Duration) override {
    MutexLock lock(job_.mutex_);
    SYNCGRADS_RETURN_IF_ERROR(AwaitLocked());
    const FakeJob::Step& step = job_.StepLocked(step_);
    uint32_t most = 0;
    for (const uint32_t count : step.contributors) most = std::max(most, count);
    bool all_ended = true;
    for (const bool ended : job_.ended_) all_ended = all_ended && ended;
    if (most == 0 && all_ended) return absl::OutOfRangeError("all have ended");
    std::vector<Contributors> contributors;
    for (size_t i = 0; i < results_.size(); ++i) {
      contributors.push_back({step.contributors[i], step.contributors[i]});
      // What Wait or NextCompletion has returned may be in use.
      if (waited_.contains(i) || arrived_.contains(i)) continue;
      std::string result = step.results[i];
      if (job_.corrupted_ == rank_ && !result.empty()) result[2] ^= 0x40;
      Deliver(i, result);
    }
    rate_factor_ = job_.RateFactorLocked(step_);
    ++step_;
    waited_.clear();
    arrived_.clear();
    weight_ = 1;
    return contributors;
  }

  absl::Status End(absl::Duration) override {
    MutexLock lock(job_.mutex_);
    job_.ended_[rank_] = true;
    job_.changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status Broadcast(uint32_t root, absl::Span<void* const> tensors, absl::Duration) override {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t size = spec_.tensors[i].bytes();
      SYNCGRADS_ASSIGN_OR_RETURN(
          const std::vector<FakeContribution> all,
          job_.All(rank_, absl::StrCat("round 0 of ", i), {Bytes(tensors[i], size)}));
      std::memcpy(tensors[i], all[root].bytes->data(), size);
      MutexLock lock(job_.mutex_);
      job_.parameters_.resize(tensors.size());
      job_.parameters_[i] = *all[root].bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Restore(uint32_t, absl::Span<void* const>, const OptimizerState&,
                       absl::Duration) override {
    return absl::UnimplementedError("the fake restores nothing");
  }

  absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> SnapshotOptimizer(absl::Duration) override {
    return absl::UnimplementedError("the fake holds nothing");
  }

  absl::StatusOr<bool> RegisterState(absl::Span<const NamedTensor>, absl::Duration) override {
    return false;
  }

  absl::StatusOr<StepMembers> BeginStep() override {
    return StepMembers{1, rank_, job_.world_size_};
  }

  absl::Status RestartStep(absl::Duration) override {
    return absl::UnimplementedError("the fake's members do not change");
  }

  absl::StatusOr<StepOutcome> LastStep(absl::Duration) const override {
    StepOutcome outcome{step_ - 1, 1, {}, {}, true};
    MutexLock lock(job_.mutex_);
    const FakeJob::Step& step = job_.StepLocked(step_ - 1);
    for (uint32_t rank = 0; rank < job_.world_size_; ++rank) {
      outcome.members.push_back(absl::StrCat("worker-", rank));
      if (step.from[0][rank].has_value() && step.from[0][rank]->bytes.has_value())
        outcome.contributors.push_back(rank);
    }
    return outcome;
  }

 private:
  absl::Status AwaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(job_.mutex_) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (!job_.IsCompleteLocked(step_)) {
      if (!job_.changed_.WaitUntil(job_.mutex_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("step ", step_));
      }
    }
    FakeJob::Step& step = job_.StepLocked(step_);
    if (!step.closed) job_.CloseLocked(step);
    return absl::OkStatus();
  }

  void Deliver(size_t tensor, const std::string& result) {
    if (results_[tensor] == nullptr) {
      in_place_[tensor] = result;
    } else {
      std::memcpy(results_[tensor], result.data(), result.size());
    }
  }

  // The result stays in place if `result` is null.
  void Put(TensorId tensor, FakeContribution contribution, void* result) {
    results_[ToNumber(tensor)] = result;
    MutexLock lock(job_.mutex_);
    job_.StepLocked(step_).from[ToNumber(tensor)][rank_] = std::move(contribution);
    job_.changed_.NotifyAll();
  }

  FakeJob& job_;
  const uint32_t rank_;
  const GroupSpec spec_;
  const Layout layout_;
  uint64_t step_ = 1;
  double weight_ = 1;
  double rate_factor_ = 1;
  std::vector<void*> results_;
  std::vector<std::string> in_place_;
  std::set<size_t> waited_;  // tensors of this step that Wait has returned
  // The tensors of this step that NextCompletion has returned, with the number of contributors of
  // each.
  std::map<size_t, uint32_t> arrived_;
};

class FakeTeamMember : public Team {
 public:
  FakeTeamMember(FakeJob& job, uint32_t rank) : job_(job), rank_(rank) {}

  std::string name() const override { return absl::StrCat("worker-", rank_); }
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return job_.world_size_; }

  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                     Reduction reduction, bool contribute) override {
    const size_t size = values.size() * sizeof(double);
    FakeContribution ours;
    if (contribute) ours.bytes = Bytes(values.data(), size);
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<FakeContribution> all,
                               job_.All(rank_, std::string(name), ours));
    std::string result;
    const uint32_t count = ReduceAll(DType::kF64, reduction, all, result);
    std::memcpy(values.data(), result.data(), result.size());
    return count;
  }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                  absl::string_view bytes) override {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<FakeContribution> all,
                               job_.All(rank_, std::string(name), {std::string(bytes)}));
    std::vector<std::string> gathered;
    for (const FakeContribution& one : all) gathered.push_back(*one.bytes);
    return gathered;
  }

  absl::Status Barrier(absl::string_view name) override {
    return job_.All(rank_, absl::StrCat(name, "/barrier"), FakeContribution()).status();
  }

  absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                            uint32_t root) override {
    for (const NamedTensor& tensor : tensors) {
      SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<FakeContribution> all,
                                 job_.All(rank_, absl::StrCat(name, "/", tensor.spec.name),
                                          {Bytes(tensor.data, tensor.spec.bytes())}));
      std::memcpy(tensor.data, all[root].bytes->data(), all[root].bytes->size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Group*> Register(const GroupSpec& spec) override {
    SYNCGRADS_ASSIGN_OR_RETURN(Layout layout, LayoutOf(spec));
    {
      MutexLock lock(job_.mutex_);
      job_.spec_ = spec;
      if (const auto* optimizer = std::get_if<Optimizer>(&spec.rule); optimizer != nullptr) {
        if (!job_.optimizer_.has_value()) {
          SYNCGRADS_ASSIGN_OR_RETURN(job_.optimizer_,
                                     LocalOptimizer::Create(*optimizer, spec.tensors));
        }
      }
    }
    group_ = std::make_unique<FakeGroup>(job_, rank_, spec, std::move(layout));
    return group_.get();
  }

  absl::StatusOr<void*> AllocateGradients(size_t bytes) override {
    if (job_.refuses_gradients_) return absl::ResourceExhaustedError("there is no memory");
    MutexLock lock(job_.mutex_);
    return job_.gradients_.emplace_back(bytes).data();
  }

  absl::Status SetLearningRateFactor(double factor) override {
    job_.SetRateFactor(1, factor);
    return absl::OkStatus();
  }

 private:
  FakeJob& job_;
  const uint32_t rank_;
  std::unique_ptr<FakeGroup> group_;
};

FakeJob::FakeJob(uint32_t world_size) : world_size_(world_size), ended_(world_size, false) {
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    teams_.push_back(std::make_unique<FakeTeamMember>(*this, rank));
  }
}

FakeJob::~FakeJob() = default;

Team& FakeJob::team(uint32_t rank) { return *teams_[rank]; }

void FakeJob::Run(const std::function<void(Team&)>& work) {
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Team>& team : teams_) {
    threads.emplace_back([&work, &team] { work(*team); });
  }
  for (std::thread& thread : threads) thread.join();
}

void FakeJob::NotePush(const void* values) {
  const auto* const at = static_cast<const std::byte*>(values);
  MutexLock lock(mutex_);
  for (const std::vector<std::byte>& memory : gradients_) {
    if (at >= memory.data() && at < memory.data() + memory.size()) return;
  }
  ++pushed_from_elsewhere_;
}

uint64_t FakeJob::pushed_from_elsewhere() {
  MutexLock lock(mutex_);
  return pushed_from_elsewhere_;
}

absl::StatusOr<std::vector<FakeContribution>> FakeJob::All(uint32_t rank, const std::string& name,
                                                           FakeContribution ours) {
  MutexLock lock(mutex_);
  const int call = calls_[{rank, name}]++;
  Exchange& exchange = exchanges_[absl::StrCat(name, "#", call)];
  exchange.from.resize(world_size_);
  exchange.from[rank] = std::move(ours);
  ++exchange.arrived;
  changed_.NotifyAll();
  const absl::Time deadline = absl::Now() + kTimeout;
  while (exchange.arrived < world_size_) {
    if (!changed_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError(name);
  }
  std::vector<FakeContribution> all;
  for (const auto& one : exchange.from) all.push_back(*one);
  return all;
}

FakeJob::Step& FakeJob::StepLocked(uint64_t number) {
  Step& step = steps_[number];
  if (step.from.empty()) {
    step.from.assign(spec_->tensors.size(), {});
    for (auto& ranks : step.from) ranks.resize(world_size_);
  }
  return step;
}

bool FakeJob::IsCompleteLocked(uint64_t number) {
  Step& step = StepLocked(number);
  if (step.closed) return true;
  for (size_t tensor = 0; tensor < step.from.size(); ++tensor) {
    if (!HasAllLocked(step, tensor)) return false;
  }
  return true;
}

uint64_t FakeJob::early_results() {
  MutexLock lock(mutex_);
  return early_results_;
}

bool FakeJob::HasAllLocked(const Step& step, size_t tensor) const {
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (!step.from[tensor][rank].has_value() && !ended_[rank]) return false;
  }
  return true;
}

uint32_t FakeJob::ReduceLocked(const Step& step, size_t tensor, std::string& result) {
  const auto* reduction = std::get_if<Reduction>(&spec_->rule);
  std::vector<FakeContribution> all;
  for (const auto& one : step.from[tensor]) all.push_back(one.value_or(FakeContribution{}));
  return ReduceAll(spec_->tensors[tensor].dtype,
                   reduction != nullptr ? *reduction : Reduction::kAverage, all, result);
}

void FakeJob::CloseLocked(Step& step) {
  step.closed = true;
  for (uint32_t i = 0; i < step.from.size(); ++i) {
    std::string& result = step.results.emplace_back();
    step.contributors.push_back(ReduceLocked(step, i, result));
    if (std::holds_alternative<Reduction>(spec_->rule) || step.contributors.back() == 0) continue;
    const absl::Status applied = optimizer_->Apply(
        TensorId{i},
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(result.data()), result.size()),
        absl::MakeSpan(reinterpret_cast<std::byte*>(parameters_[i].data()), parameters_[i].size()));
    if (!applied.ok()) std::abort();
    result = parameters_[i];
  }
}

}  // namespace syncgrads
