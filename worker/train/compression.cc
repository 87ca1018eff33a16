#include "worker/train/compression.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/status_macros.h"
#include "worker/base/name_pattern.h"

namespace syncgrads {
namespace {

// In a smaller tensor, the header and the scale are a large part of what is sent.
constexpr uint64_t kMinElements = 1024;

bool Names(const v1::CompressionRule& rule, const TensorSpec& parameter) {
  return rule.parameters().empty() ||
         std::any_of(
             rule.parameters().begin(), rule.parameters().end(),
             [&](const std::string& pattern) { return MatchesName(pattern, parameter.name); });
}

bool IsCompressible(const v1::CompressionRule& rule, const TensorSpec& parameter) {
  const uint64_t least = rule.min_elements() == 0 ? kMinElements : rule.min_elements();
  return parameter.shape.size() > 1 && parameter.elements() >= least;
}

}  // namespace

absl::StatusOr<std::vector<Compression>> CompressionOf(const v1::JobFile& job,
                                                       absl::Span<const TensorSpec> parameters) {
  for (const v1::CompressionRule& rule : job.compression()) {
    for (const std::string& pattern : rule.parameters()) {
      if (std::any_of(parameters.begin(), parameters.end(), [&](const TensorSpec& parameter) {
            return MatchesName(pattern, parameter.name);
          })) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("a compression rule is for the parameters \"", pattern,
                       "\", but the model has no parameters with this name; its first are \"",
                       parameters.front().name, "\""));
    }
  }
  std::vector<Compression> compression;
  if (job.compression().empty()) return compression;
  compression.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto rule =
        std::find_if(job.compression().begin(), job.compression().end(),
                     [&](const v1::CompressionRule& rule) { return Names(rule, parameters[i]); });
    if (rule == job.compression().end() || !IsCompressible(*rule, parameters[i])) continue;
    SYNCGRADS_ASSIGN_OR_RETURN(compression[i].push, FromProto(rule->push()));
    SYNCGRADS_ASSIGN_OR_RETURN(compression[i].result, FromProto(rule->result()));
  }
  return compression;
}

}  // namespace syncgrads
