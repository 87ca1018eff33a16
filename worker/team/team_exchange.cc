#include "worker/team/team_exchange.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

std::string CollectiveName(const std::string& name) { return absl::StrCat("batch/", name); }

}  // namespace

void TeamExchange::Begin(double weight) {
  weight_ = weight;
  if (steps_ < 2) ++steps_;
}

absl::Status TeamExchange::Sum(const std::string& name, absl::Span<double> values) {
  if (steps_ == 1) calls_.emplace_back(name, values.size());
  if (status_.ok()) {
    status_ = team_.AllReduce(CollectiveName(name), values, Reduction::kSum).status();
  }
  return status_;
}

absl::Status TeamExchange::Skip() {
  if (steps_ == 0) {
    return absl::FailedPreconditionError(
        "this worker has no rows, but batch_norm.across_workers needs rows on every worker");
  }
  for (const auto& [name, size] : calls_) {
    std::vector<double> values(size);
    SYNCGRADS_RETURN_IF_ERROR(team_
                                  .AllReduce(CollectiveName(name), absl::MakeSpan(values),
                                             Reduction::kSum, /*contribute=*/false)
                                  .status());
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
