// Conversions between the messages of proto/figures.proto and the structs of
// common/signals/figures.h. Thread-safe.

#ifndef SYNCGRADS_COMMON_CONTRACT_FIGURES_H_
#define SYNCGRADS_COMMON_CONTRACT_FIGURES_H_

#include "absl/status/statusor.h"
#include "common/signals/figures.h"
#include "proto/figures.pb.h"

namespace syncgrads {

v1::TrainingFigures ToProto(const TrainingFigures& figures);
// Errors: those of CheckFigures.
absl::StatusOr<TrainingFigures> FromProto(const v1::TrainingFigures& proto);

v1::Validation ToProto(const Validation& validation);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_FIGURES_H_
