#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_transport.h"

namespace syncgrads::sim {
namespace {

// A wait that takes this long is a failure.
constexpr absl::Duration kPatience = absl::Seconds(90);

// The largest number of sessions of one worker that end with an error.
constexpr int kMostLives = 400;

std::string BytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace

SimWorker::SimWorker(WorkerShape shape, const JobShape& job, World& world, Network& network,
                     Fibers& fibers, Checker& checker)
    : Process(shape.name),
      shape_(std::move(shape)),
      job_(job),
      world_(world),
      network_(network),
      fibers_(fibers),
      checker_(checker) {}

SimWorker::~SimWorker() = default;

void SimWorker::Start() { StartAgainAfter(shape_.starts_after); }

void SimWorker::StartAgainAfter(absl::Duration delay) {
  world_.After(*this, delay, [this] {
    if (superseded_) return Finish(true);
    ++lives_;
    incarnation_ = Incarnation{world_.random().Next() | 1};
    joined_ = ending_ = was_killed_ = false;
    ended_with_ = absl::UnknownError("it was killed");
    Doing("starts");
    fiber_ = fibers_.Start(
        *this, [this] { ended_with_ = Live(); }, [this] { OnLifeOver(); });
  });
}

void SimWorker::Kill(std::optional<absl::Duration> down) {
  if (!alive() || was_killed_) return;
  Doing("is killed");
  was_killed_ = true;
  down_ = down;
  if (frozen()) world_.Thaw(*this);
  network_.ClientDied(*this, /*tell=*/true);
  // If the session is already being closed, the fiber ends by itself.
  if (!ending_) fibers_.Kill(fiber_);
}

void SimWorker::Doing(std::string what) {
  doing_ = std::move(what);
  if (world_.tracing()) world_.Trace(absl::StrCat(name(), ": ", doing_));
}

void SimWorker::Finish(bool well) {
  done_ = true;
  finished_ = well;
  Doing(absl::StrCat("is done, ", well ? "well" : "not well", "; before, it ", doing_));
}

bool SimWorker::IsExcused(const absl::Status& status) const {
  const std::optional<Checker::Admission> admission = checker_.AdmissionOf(incarnation_);
  if (admission.has_value() && checker_.MayBeRefused(admission->generation, admission->member)) {
    return true;
  }
  // The member that had the first parameters is gone.
  if (absl::StrContains(status.message(), "no member pushed the initial parameters")) {
    return !checker_.dropped().empty();
  }
  if (checker_.state_lost()) return true;
  // The worker was late, and with the optimizer on the workers it needs each result.
  if (job_.leaves_behind() && absl::StrContains(status.message(), "no longer kept")) return true;
  // The worker was unreachable of a server for a lease.
  return (disturbed_ || may_give_up_) && absl::IsUnavailable(status);
}

void SimWorker::OnLifeOver() {
  fiber_ = nullptr;
  ForgetEvents();
  const absl::Status status = std::exchange(ended_with_, absl::OkStatus());
  if (was_killed_) {
    // Before a job has begun, it readmits a worker, whether the job is elastic or not.
    if (!down_.has_value() && !joined_) down_ = absl::Milliseconds(300);
    if (!down_.has_value()) return Finish(false);
    return StartAgainAfter(*down_);
  }
  if (status.ok()) return Finish(true);
  Doing(absl::StrCat("fails: ", status.ToString()));
  // From now on, the other workers may continue without this one.
  if (may_give_up_ && absl::IsUnavailable(status)) disturbed_ = true;
  if (!joined_) {
    // The job has ended, or has begun without this worker.
    if (checker_.any_closed()) return Finish(false);
    if (absl::IsResourceExhausted(status) && (disturbed_ || !shape_.first)) return Finish(false);
    // Possible reasons to try again: the predecessor has not been detected as dead; no worker has
    // created the job yet; or workers that join later occupy the places of members that died before
    // the job began.
    const bool again = absl::IsAlreadyExists(status) || absl::IsAborted(status) ||
                       (job_.elastic && absl::IsResourceExhausted(status)) || IsExcused(status) ||
                       (disturbed_ && absl::IsFailedPrecondition(status));
    if (!again) return world_.Fail(absl::StrCat(name(), " cannot join: ", status.ToString()));
  } else if (!IsExcused(status)) {
    return world_.Fail(absl::StrCat(name(), " fails for no reason: ", status.ToString()));
  } else if (!job_.elastic) {
    return Finish(false);
  }
  // The new incarnation may cause its predecessor to be dropped.
  disturbed_ = true;
  if (lives_ == kMostLives) return world_.Fail(absl::StrCat(name(), " fails again and again"));
  StartAgainAfter(absl::Milliseconds(300));
}

absl::Status SimWorker::Live() {
  parameters_.clear();
  for (uint32_t t = 0; t < job_.group.tensors.size(); ++t) {
    const TensorSpec& tensor = job_.group.tensors[t];
    std::vector<float>& values = parameters_.emplace_back(tensor.elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(100 * t + i);
    // Different on each worker: after the broadcast, all workers have the root's values.
    if (job_.on_servers()) values = GradientOf(/*step=*/0, t, /*epoch=*/0);
  }
  gradients_ = results_ = parameters_;
  in_gradients_.assign(parameters_.size(), false);
  steps_done_ = 0;

  ClientOptions options;
  options.coordinator = SimServer::AddressOf(0);
  options.job = "job";
  options.token = "secret";
  options.name = shape_.name;
  options.rank = shape_.rank;
  options.world_size = job_.world_size;
  options.max_workers = job_.max_workers;
  options.min_workers = job_.min_workers;
  options.only_running = !shape_.first || checker_.any_begun();
  options.connections_per_server = job_.connections;
  options.shared_memory = false;
  options.unix_socket = false;
  client::Session session(options, {std::make_unique<SimTransport>(network_, *this, checker_),
                                    std::make_unique<SimTimers>(world_, *this), incarnation_});
  absl::Status status = Train(session);
  ending_ = true;
  return status;
}

absl::Status SimWorker::Train(client::Session& session) {
  Doing("joins");
  SYNCGRADS_RETURN_IF_ERROR(session.Join(kPatience));
  joined_ = true;
  Doing("registers");
  SYNCGRADS_ASSIGN_OR_RETURN(Group* const group, session.Register(job_.group, kPatience));
  if (job_.on_servers() && !session.is_newcomer()) {
    SYNCGRADS_RETURN_IF_ERROR(Broadcast(*group));
  }
  if (job_.elastic) {
    std::vector<NamedTensor> state;
    for (uint32_t t = 0; t < parameters_.size(); ++t) {
      state.push_back({job_.group.tensors[t], parameters_[t].data()});
    }
    state.push_back({{"steps", DType::kI64, {}}, &steps_done_});
    Doing("takes its state");
    SYNCGRADS_ASSIGN_OR_RETURN(const bool newcomer, group->RegisterState(state, kPatience));
    if (newcomer) {
      if (static_cast<uint64_t>(steps_done_) + 1 != group->step()) {
        world_.Fail(absl::StrCat(name(), " begins with step ", group->step(),
                                 " on the state after step ", steps_done_));
      }
      if (steps_done_ > 0) {
        checker_.OnStep(name(), checker_.AdmissionOf(incarnation_)->generation, steps_done_,
                        State());
      }
    }
  }
  SYNCGRADS_RETURN_IF_ERROR(TrainSteps(session, *group));
  Doing("leaves");
  return session.Leave(kPatience);
}

absl::Status SimWorker::Broadcast(Group& group) {
  std::vector<void*> tensors;
  for (std::vector<float>& tensor : parameters_) tensors.push_back(tensor.data());
  Doing("broadcasts");
  SYNCGRADS_RETURN_IF_ERROR(group.Broadcast(0, tensors, kPatience));
  steps_done_ = static_cast<int64_t>(group.step() - 1);
  if (steps_done_ == 0) return absl::OkStatus();
  // The other workers have made steps without this worker.
  if (!job_.leaves_behind()) {
    world_.Fail(absl::StrCat(name(), " begins with step ", group.step()));
  }
  checker_.OnStep(name(), checker_.AdmissionOf(incarnation_)->generation, steps_done_, State());
  return absl::OkStatus();
}

absl::Status SimWorker::TrainSteps(client::Session& session, Group& group) {
  const Generation generation = checker_.AdmissionOf(incarnation_)->generation;
  bool ended = false;
  while (true) {
    const uint64_t step = group.step();
    if (step != static_cast<uint64_t>(steps_done_) + 1) {
      world_.Fail(absl::StrCat(name(), " goes from step ", steps_done_, " to step ", step));
    }
    fibers_.Sleep(world_.random().Between(absl::ZeroDuration(), job_.most_in_step));
    if (!ended && step > shape_.data_steps) {
      Doing(absl::StrCat("ends its data before step ", step));
      SYNCGRADS_RETURN_IF_ERROR(group.End(kPatience));
      ended = true;
    }
    if (ended && !shape_.follows) return absl::OkStatus();
    SYNCGRADS_RETURN_IF_ERROR(PushStep(group, ended));
    if (!ended && shape_.ends_at_once && step == shape_.data_steps) {
      Doing(absl::StrCat("ends its data with step ", step));
      SYNCGRADS_RETURN_IF_ERROR(group.End(kPatience));
      ended = true;
    }
    Doing(absl::StrCat("waits for step ", step));
    absl::StatusOr<std::vector<Contributors>> counts;
    const absl::Status waited = InSlices([&](absl::Duration slice) {
      counts = group.WaitStep(slice);
      return counts.status();
    });
    if (ended && absl::IsOutOfRange(waited)) break;
    if (job_.group.one_epoch && absl::IsAborted(waited) && session.status().ok()) {
      Doing(absl::StrCat("begins step ", step, " again"));
      SYNCGRADS_RETURN_IF_ERROR(
          InSlices([&](absl::Duration slice) { return group.RestartStep(slice); }));
      continue;
    }
    SYNCGRADS_RETURN_IF_ERROR(waited);
    EndStep(group, step, *counts);
    if (!job_.own_steps()) checker_.OnStep(name(), generation, steps_done_, State());
  }
  checker_.OnEnd(name(), generation, job_.own_steps() ? 0 : steps_done_, State());
  return absl::OkStatus();
}

absl::Status SimWorker::InSlices(absl::FunctionRef<absl::Status(absl::Duration)> wait) {
  const absl::Time deadline = world_.Now() + kPatience;
  while (true) {
    const absl::Duration left = deadline - world_.Now();
    const absl::Duration slice =
        job_.most_wait_slice < left
            ? world_.random().Between(absl::Milliseconds(1), job_.most_wait_slice)
            : left;
    const absl::Status status = wait(slice);
    if (!absl::IsDeadlineExceeded(status) || slice >= left) return status;
  }
}

absl::Status SimWorker::PushStep(Group& group, bool ended) {
  if (ended || group.steps_behind() > 0) return SkipStep(group);
  uint64_t epoch = 0;
  if (job_.group.one_epoch) {
    SYNCGRADS_ASSIGN_OR_RETURN(const StepMembers members, group.BeginStep());
    epoch = members.epoch;
  }
  return Contribute(group, epoch);
}

absl::Status SimWorker::SkipStep(Group& group) {
  std::vector<void*> results;
  for (std::vector<float>& result : results_) results.push_back(result.data());
  in_gradients_.assign(parameters_.size(), false);
  return group.SkipAll(results);
}

std::vector<float> SimWorker::GradientOf(uint64_t step, uint32_t tensor, uint64_t epoch) const {
  uint64_t seed = Mix(step * 1000 + tensor + 1'000'000 * epoch);
  for (char c : shape_.name) seed = Mix(seed + static_cast<unsigned char>(c));
  std::vector<float> values(job_.group.tensors[tensor].elements());
  for (float& value : values) {
    seed = Mix(seed);
    value = static_cast<float>(static_cast<int64_t>(seed % 2001) - 1000);
  }
  return values;
}

absl::Status SimWorker::Contribute(Group& group, uint64_t epoch) {
  const uint64_t step = group.step();
  if (shape_.weighted) {
    SYNCGRADS_RETURN_IF_ERROR(group.SetWeight(static_cast<double>(1 + Mix(step) % 4)));
  }
  std::vector<uint32_t> order(parameters_.size());
  for (uint32_t t = 0; t < order.size(); ++t) order[t] = t;
  world_.random().Shuffle(order);
  Doing(absl::StrCat("pushes step ", step));
  for (uint32_t t : order) {
    fibers_.Sleep(world_.random().Between(absl::ZeroDuration(), job_.most_between_pushes));
    gradients_[t] = GradientOf(step, t, epoch);
    // The result goes to the memory of the gradient in half of the cases.
    float* const result = (step + t) % 2 == 0 ? gradients_[t].data() : results_[t].data();
    // A function of the step, so that all attempts skip the same tensors.
    const bool skips = static_cast<double>(Mix(step * 77 + t) % 1000) < 1000 * shape_.skips;
    SYNCGRADS_RETURN_IF_ERROR(skips ? group.Skip(TensorId{t}, results_[t].data())
                                    : group.Push(TensorId{t}, gradients_[t].data(),
                                                 gradients_[t].size() * sizeof(float), result));
    in_gradients_[t] = !skips && result != results_[t].data();
  }
  return absl::OkStatus();
}

void SimWorker::EndStep(Group& group, uint64_t step, const std::vector<Contributors>& counts) {
  const uint64_t ended = group.step() - 1;
  // Only a late worker, which receives the newest parameters, may advance by more than one step.
  if (ended < step || (ended > step && !(job_.leaves_behind() && job_.on_servers()))) {
    world_.Fail(absl::StrCat(name(), " is in step ", group.step(), " after step ", step));
  }
  const float rate = static_cast<float>(group.learning_rate_factor());
  if (!job_.own_steps()) CheckRate(ended, rate);
  for (uint32_t t = 0; t < parameters_.size(); ++t) {
    if (in_gradients_[t]) results_[t] = gradients_[t];
    if (job_.own_steps()) {
      CheckVersion(ended, t);
    } else {
      CheckResult(ended, t, counts[t]);
    }
    Apply(t, counts[t].most > 0, rate);
  }
  steps_done_ = static_cast<int64_t>(ended);
}

void SimWorker::CheckResult(uint64_t step, uint32_t tensor, const Contributors& counts) {
  const Checker::Admission admission = *checker_.AdmissionOf(incarnation_);
  const Checker::TensorResult expected =
      checker_.ResultOf(admission.generation, job_.group.name, step, TensorId{tensor});
  if (!expected.known) {
    world_.Fail(absl::StrCat(name(), " ends step ", step, ", which has not closed"));
  } else if (counts.least != expected.least || counts.most != expected.most) {
    world_.Fail(absl::StrCat(name(), " is told of other contributors in step ", step));
  } else if (std::memcmp(results_[tensor].data(), expected.bytes.data(), expected.bytes.size()) !=
             0) {
    world_.Fail(absl::StrCat(name(), " has another result of step ", step, ", tensor ", tensor));
  }
}

void SimWorker::CheckRate(uint64_t step, double factor) {
  const Checker::Admission admission = *checker_.AdmissionOf(incarnation_);
  const double expected = checker_.RateFactorOf(admission.generation, job_.group.name, step);
  if (factor == expected) return;
  world_.Fail(absl::StrCat(name(), " has the learning rate factor ", factor, " in step ", step,
                           ", whose factor is ", expected));
}

void SimWorker::CheckVersion(uint64_t step, uint32_t tensor) {
  const Checker::Admission admission = *checker_.AdmissionOf(incarnation_);
  if (checker_.MayHave(admission.generation, job_.group.name, admission.member, step,
                       TensorId{tensor}, BytesOf(results_[tensor]))) {
    return;
  }
  world_.Fail(
      absl::StrCat(name(), " has what it was not sent in step ", step, ", tensor ", tensor));
}

void SimWorker::Apply(uint32_t tensor, bool anybody, float rate) {
  std::vector<float>& values = parameters_[tensor];
  if (job_.on_servers()) {
    values = results_[tensor];
  } else if (anybody) {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= rate * results_[tensor][i];
  }
}

std::string SimWorker::State() const {
  std::string state;
  for (const std::vector<float>& tensor : parameters_) state += BytesOf(tensor);
  return state;
}

}  // namespace syncgrads::sim
