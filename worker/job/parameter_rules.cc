#include "worker/job/parameter_rules.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/name_pattern.h"

namespace syncgrads {
namespace {

// Checks that each name of the job's rules matches a parameter.
absl::Status CheckNames(const v1::JobFile& job, absl::Span<const TensorSpec> parameters) {
  for (const v1::ParameterRule& rule : job.parameter_rules()) {
    for (const std::string& pattern : rule.parameters()) {
      if (std::any_of(parameters.begin(), parameters.end(), [&](const TensorSpec& parameter) {
            return MatchesName(pattern, parameter.name);
          })) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter_rules has \"", pattern,
          "\", but the model has no parameter with this name; its first is \"",
          parameters.front().name, "\" and its last \"", parameters.back().name, "\""));
    }
  }
  return absl::OkStatus();
}

TensorFactors FactorsOf(const v1::JobFile& job, const TensorSpec& parameter) {
  TensorFactors factors;
  if (job.decay_kernels_only() && parameter.shape.size() < 2) factors.weight_decay = 0;
  for (const v1::ParameterRule& rule : job.parameter_rules()) {
    if (std::none_of(
            rule.parameters().begin(), rule.parameters().end(),
            [&](const std::string& pattern) { return MatchesName(pattern, parameter.name); })) {
      continue;
    }
    if (rule.has_learning_rate_factor()) factors.learning_rate = rule.learning_rate_factor();
    if (rule.has_weight_decay_factor()) factors.weight_decay = rule.weight_decay_factor();
    break;
  }
  return factors;
}

}  // namespace

absl::StatusOr<std::vector<TensorFactors>> FactorsOf(const v1::JobFile& job,
                                                     absl::Span<const TensorSpec> parameters) {
  SYNCGRADS_RETURN_IF_ERROR(CheckNames(job, parameters));
  std::vector<TensorFactors> factors;
  for (const TensorSpec& parameter : parameters) factors.push_back(FactorsOf(job, parameter));
  if (std::all_of(factors.begin(), factors.end(),
                  [](const TensorFactors& one) { return one.learning_rate == 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter_rules sets the learning rate factor of all ", parameters.size(),
                     " parameters to 0: no parameter is trained"));
  }
  return factors;
}

}  // namespace syncgrads
