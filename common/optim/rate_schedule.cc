#include "common/optim/rate_schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads {
namespace {

constexpr double kPi = 3.141592653589793;
// A server looks at all milestones for each tensor of a push.
constexpr size_t kMostMilestones = 1000;

double Factor(std::monostate, uint64_t) { return 1; }

double Factor(const StepDecay& decay, uint64_t step) {
  const auto reached = std::count_if(decay.milestones.begin(), decay.milestones.end(),
                                     [step](uint64_t milestone) { return step >= milestone; });
  return std::pow(decay.factor, static_cast<double>(reached));
}

double Factor(const CosineDecay& decay, uint64_t step) {
  const double cycle = static_cast<double>(step / decay.cycle_steps);
  const double phase =
      static_cast<double>(step % decay.cycle_steps) / static_cast<double>(decay.cycle_steps);
  const double peak = std::max(decay.minimum, std::pow(decay.dampening, cycle));
  return decay.minimum + (peak - decay.minimum) * (1 + std::cos(kPi * phase)) / 2;
}

std::string Text(std::monostate) { return "constant"; }

std::string Text(const StepDecay& decay) {
  return absl::StrCat("step(milestones=[", absl::StrJoin(decay.milestones, ","),
                      "], factor=", decay.factor, ")");
}

std::string Text(const CosineDecay& decay) {
  return absl::StrCat("cosine(cycle_steps=", decay.cycle_steps, ", minimum=", decay.minimum,
                      ", dampening=", decay.dampening, ")");
}

absl::Status Check(std::monostate) { return absl::OkStatus(); }

absl::Status Check(const StepDecay& decay) {
  if (decay.milestones.size() > kMostMilestones) {
    return absl::InvalidArgumentError(absl::StrCat("a schedule has ", decay.milestones.size(),
                                                   " milestones, must have at most ",
                                                   kMostMilestones));
  }
  const double last = std::pow(decay.factor, static_cast<double>(decay.milestones.size()));
  if (decay.factor > 0 && std::isfinite(decay.factor) && std::isfinite(last)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the factor of a schedule is ", decay.factor, " with ", decay.milestones.size(),
                   " milestones, must be positive, and finite after all milestones"));
}

absl::Status Check(const CosineDecay& decay) {
  if (decay.cycle_steps == 0) {
    return absl::InvalidArgumentError("the cycle_steps of a schedule is 0, must be at least 1");
  }
  if (!(decay.minimum >= 0 && decay.minimum <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the minimum of a schedule is ", decay.minimum, ", must be from 0 to 1"));
  }
  if (decay.dampening > 0 && decay.dampening <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the dampening of a schedule is ", decay.dampening,
                                                 ", must be above 0 and at most 1"));
}

}  // namespace

double RateFactor(const RateSchedule& schedule, uint64_t step, uint32_t workers) {
  const double factor = schedule.times_workers ? workers : 1;
  if (step < schedule.warmup_steps) {
    return factor * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  return factor * std::visit([since = step - schedule.warmup_steps](
                                 const auto& decay) { return Factor(decay, since); },
                             schedule.decay);
}

std::string ToString(const RateSchedule& schedule) {
  return absl::StrCat("schedule(warmup_steps=", schedule.warmup_steps, ", ",
                      std::visit([](const auto& decay) { return Text(decay); }, schedule.decay),
                      schedule.times_workers ? ", times_workers" : "", ")");
}

absl::Status Validate(const RateSchedule& schedule) {
  return std::visit([](const auto& decay) { return Check(decay); }, schedule.decay);
}

ScheduledOptimizer::ScheduledOptimizer(const Optimizer& rule)
    : rule_(rule), schedule_([]() -> const RateSchedule& {
        static const auto& constant = *new RateSchedule();
        return constant;
      }()) {}

Optimizer ScheduledOptimizer::After(TensorId tensor, uint64_t updates) const {
  const double factor = factor_ * RateFactor(schedule_, updates, workers_);
  if (tensors_.empty()) return WithRateFactor(rule_, factor);
  return WithRateFactor(WithFactors(rule_, tensors_[ToNumber(tensor)]), factor);
}

}  // namespace syncgrads
