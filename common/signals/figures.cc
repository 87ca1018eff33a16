#include "common/signals/figures.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/names.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status CheckFinite(absl::string_view what, std::optional<double> value) {
  if (!value.has_value() || std::isfinite(*value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", *value, ", must be finite"));
}

absl::Status CheckTimes(const StepTimes& times) {
  for (const auto& [name, time] :
       {std::pair("read", times.read), std::pair("compute", times.compute),
        std::pair("push", times.push), std::pair("wait", times.wait),
        std::pair("apply", times.apply)}) {
    if (time >= absl::ZeroDuration()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the time of the phase \"", name, "\" is ",
                                                   absl::FormatDuration(time),
                                                   ", must not be negative"));
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const std::vector<Score>& scores) {
  if (scores.size() > kMaxScores) {
    return absl::InvalidArgumentError(
        absl::StrCat("a validation has ", scores.size(), " scores, at most ", kMaxScores));
  }
  for (const Score& score : scores) {
    if (score.name.empty()) return absl::InvalidArgumentError("a score has no name");
    SYNCGRADS_RETURN_IF_ERROR(CheckName("the name of a score", score.name, kMaxScoreNameBytes));
    SYNCGRADS_RETURN_IF_ERROR(
        CheckFinite(absl::StrCat("the score \"", score.name, "\""), score.value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFigures(const TrainingFigures& figures) {
  SYNCGRADS_RETURN_IF_ERROR(CheckFinite("the loss", figures.loss));
  SYNCGRADS_RETURN_IF_ERROR(CheckFinite("the learning rate", figures.learning_rate));
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the device's name", figures.device, kMaxDeviceBytes));
  SYNCGRADS_RETURN_IF_ERROR(CheckTimes(figures.times));
  if (!figures.validation.has_value()) return absl::OkStatus();
  return CheckScores(figures.validation->scores);
}

}  // namespace syncgrads
