// How a learning rate changes from step to step.

#ifndef SYNCGRADS_COMMON_OPTIM_RATE_SCHEDULE_H_
#define SYNCGRADS_COMMON_OPTIM_RATE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"

namespace syncgrads {

// The factor is `factor` to the power of n, where n is the number of milestones that the step has
// reached.
struct StepDecay {
  std::vector<uint64_t> milestones;  // steps, counted from 0
  double factor = 1;
  friend bool operator==(const StepDecay&, const StepDecay&) = default;
};

// Cycles, in each of which the factor falls from a peak to `minimum` as half a period of a cosine
// (Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017). The first
// peak is 1; each further peak is `dampening` times the one before, but at least `minimum`.
struct CosineDecay {
  uint64_t cycle_steps = 1;
  double minimum = 0;
  double dampening = 1;
  friend bool operator==(const CosineDecay&, const CosineDecay&) = default;
};

// The factor of the learning rate in each step. During the first `warmup_steps` steps it is
// i / warmup_steps in step i, counted from 1. The decay counts its steps from the end of the
// warm-up. With times_workers, the factor is also multiplied by the number of workers.
struct RateSchedule {
  uint64_t warmup_steps = 0;
  std::variant<std::monostate, StepDecay, CosineDecay> decay;
  bool times_workers = false;
  friend bool operator==(const RateSchedule&, const RateSchedule&) = default;
};

// Returns the factor in `step`, counted from 0, with `workers` workers. A pure function.
double RateFactor(const RateSchedule& schedule, uint64_t step, uint32_t workers);

// Returns for example "schedule(warmup_steps=5, cosine(cycle_steps=100, minimum=0, dampening=1))".
std::string ToString(const RateSchedule& schedule);

// Errors (the message has the name, the value and the range):
//   InvalidArgument  StepDecay.factor is not a positive finite number, or its product over all
//                    milestones is not; cycle_steps is 0; minimum is not from 0 to 1; dampening is
//                    not above 0 or more than 1
absl::Status Validate(const RateSchedule& schedule);

// The optimizer of a round: a rule, whose learning rate depends on the number of updates before,
// and whose hyperparameters may have factors for each tensor. Refers to its arguments.
class ScheduledOptimizer {
 public:
  // A constant learning rate, the same for all tensors.
  ScheduledOptimizer(const Optimizer& rule);  // NOLINT(google-explicit-constructor)
  // `tensors` has the factors of each tensor, or is empty if all are 1. `factor` multiplies that of
  // the schedule.
  ScheduledOptimizer(const Optimizer& rule, absl::Span<const TensorFactors> tensors,
                     const RateSchedule& schedule, double factor, uint32_t workers)
      : rule_(rule), tensors_(tensors), schedule_(schedule), factor_(factor), workers_(workers) {}

  // Returns the rule of the tensor's update after its first `updates` ones.
  Optimizer After(TensorId tensor, uint64_t updates) const;

 private:
  const Optimizer& rule_;
  const absl::Span<const TensorFactors> tensors_;
  const RateSchedule& schedule_;
  const double factor_ = 1;
  const uint32_t workers_ = 1;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_RATE_SCHEDULE_H_
