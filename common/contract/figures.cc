#include "common/contract/figures.h"

#include <algorithm>
#include <limits>

#include "common/status_macros.h"

namespace syncgrads {
namespace {

uint64_t ToMicroseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Microseconds(duration));
}

absl::Duration FromMicroseconds(uint64_t us) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return absl::Microseconds(static_cast<int64_t>(std::min(us, kMost)));
}

v1::StepTimes ToProto(const StepTimes& times) {
  v1::StepTimes proto;
  proto.set_read_us(ToMicroseconds(times.read));
  proto.set_compute_us(ToMicroseconds(times.compute));
  proto.set_push_us(ToMicroseconds(times.push));
  proto.set_wait_us(ToMicroseconds(times.wait));
  proto.set_apply_us(ToMicroseconds(times.apply));
  return proto;
}

StepTimes FromProto(const v1::StepTimes& proto) {
  return {.read = FromMicroseconds(proto.read_us()),
          .compute = FromMicroseconds(proto.compute_us()),
          .push = FromMicroseconds(proto.push_us()),
          .wait = FromMicroseconds(proto.wait_us()),
          .apply = FromMicroseconds(proto.apply_us())};
}

Validation FromProto(const v1::Validation& proto) {
  Validation validation{proto.step(), {}};
  for (const v1::Score& score : proto.scores()) {
    validation.scores.push_back({score.name(), score.value()});
  }
  return validation;
}

}  // namespace

v1::Validation ToProto(const Validation& validation) {
  v1::Validation proto;
  proto.set_step(validation.step);
  for (const Score& score : validation.scores) {
    v1::Score& one = *proto.add_scores();
    one.set_name(score.name);
    one.set_value(score.value);
  }
  return proto;
}

v1::TrainingFigures ToProto(const TrainingFigures& figures) {
  v1::TrainingFigures proto;
  proto.set_step(figures.step);
  if (figures.loss.has_value()) proto.set_loss(*figures.loss);
  if (figures.learning_rate.has_value()) proto.set_learning_rate(*figures.learning_rate);
  proto.set_device(figures.device);
  *proto.mutable_times() = ToProto(figures.times);
  if (figures.validation.has_value()) *proto.mutable_validation() = ToProto(*figures.validation);
  return proto;
}

absl::StatusOr<TrainingFigures> FromProto(const v1::TrainingFigures& proto) {
  TrainingFigures figures;
  figures.step = proto.step();
  if (proto.has_loss()) figures.loss = proto.loss();
  if (proto.has_learning_rate()) figures.learning_rate = proto.learning_rate();
  figures.device = proto.device();
  figures.times = FromProto(proto.times());
  if (proto.has_validation()) figures.validation = FromProto(proto.validation());
  SYNCGRADS_RETURN_IF_ERROR(CheckFigures(figures));
  return figures;
}

}  // namespace syncgrads
