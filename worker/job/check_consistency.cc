#include "worker/job/check_consistency.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "worker/job/consistency.h"

namespace syncgrads {
namespace {

absl::Status CheckQuorum(const v1::JobFile& file, const Field& field) {
  const v1::QuorumSpec& quorum = file.consistency().quorum();
  if (quorum.least() == 0)
    return field.Member("least").Error("is 0 or missing, must be at least 1");
  if (file.workers() != 0 && quorum.least() > file.workers()) {
    return field.Member("least").Error(
        absl::StrCat("is ", quorum.least(), ", but workers is ", file.workers()));
  }
  if (quorum.kept() == 1) return field.Member("kept").Error("is 1, must be 0 or at least 2");
  if (file.data().mode() == v1::DataSpec::DYNAMIC) {
    return field.Error("is given, but data.mode is DYNAMIC: rows of a late worker would be lost");
  }
  if (file.optimizer_placement() != v1::SERVERS && !file.has_elastic()) {
    return field.Error(
        "is given, optimizer_placement is WORKERS, and the job is not elastic: a worker that falls "
        "far behind could not rejoin");
  }
  const absl::Status valid = Validate(PolicyOf(file.consistency()));
  return valid.ok() ? valid : field.Error(valid.message());
}

absl::Status CheckLocalSteps(const v1::JobFile& file, const Field& field) {
  const v1::LocalSteps& local = file.consistency().local_steps();
  if (local.steps() == 0) return field.Member("steps").Error("is 0 or missing, must be at least 1");
  if (file.optimizer_placement() == v1::SERVERS) {
    return field.Error(
        "is given, but optimizer_placement is SERVERS: in this mode workers apply the optimizer");
  }
  if (file.data().mode() == v1::DataSpec::DYNAMIC) {
    return field.Error(
        "is given, but data.mode is DYNAMIC: rows are assigned separately for each step");
  }
  const absl::Status valid = Validate(OuterOptimizerOf(local));
  return valid.ok() ? valid : field.Member("nesterov").Error(valid.message());
}

absl::Status CheckBestOf(const v1::JobFile& file, const Field& field) {
  const v1::BestOf& best_of = file.consistency().best_of();
  if (best_of.steps() == 0) {
    return field.Member("steps").Error("is 0 or missing, must be at least 1");
  }
  const bool positive = std::isfinite(best_of.factor()) && best_of.factor() > 0;
  if (best_of.factor_every() != 0 && !positive) {
    return field.Member("factor").Error(
        absl::StrCat("is ", best_of.factor(), ", must be a positive finite number"));
  }
  if (file.optimizer_placement() == v1::SERVERS) {
    return field.Error(
        "is given, but optimizer_placement is SERVERS: in this mode workers apply the optimizer");
  }
  if (file.has_elastic()) return field.Error("is given, but the job is elastic");
  if (file.data().validation_every() == 0) {
    return field.Error(
        "is given, but data.validation_every is 0: there are no held-out rows to compare the "
        "models on");
  }
  return absl::OkStatus();
}

absl::Status CheckStaleness(const v1::JobFile& file, const Field& field) {
  if (file.optimizer_placement() != v1::SERVERS) {
    return field.Error(
        "is given, but optimizer_placement is not SERVERS: in this mode servers apply each "
        "gradient");
  }
  if (file.has_elastic()) return field.Error("is given, but the job is elastic");
  return absl::OkStatus();  // DYNAMIC is for elastic jobs only
}

// Checks the options for which all workers must be at the same step.
absl::Status CheckNeedsSync(const v1::JobFile& file, const Field& root) {
  const auto kind = file.consistency().kind_case();
  if (kind == v1::Consistency::KIND_NOT_SET || kind == v1::Consistency::kSync) {
    return absl::OkStatus();
  }
  const std::string why =
      absl::StrCat("is given, but consistency is ",
                   v1::Consistency::descriptor()->FindFieldByNumber(kind)->name(),
                   ": workers are not all at the same step");
  if (file.has_checkpoint()) return root.Member("checkpoint").Error(why);
  if (file.check_replicas_every() > 0) return root.Member("check_replicas_every").Error(why);
  if (file.has_validation()) return root.Member("validation").Error(why);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConsistency(const v1::JobFile& file, const Field& root) {
  SYNCGRADS_RETURN_IF_ERROR(CheckNeedsSync(file, root));
  const Field field = root.Member("consistency");
  switch (file.consistency().kind_case()) {
    case v1::Consistency::kQuorum:
      return CheckQuorum(file, field.Member("quorum"));
    case v1::Consistency::kLocalSteps:
      return CheckLocalSteps(file, field.Member("local_steps"));
    case v1::Consistency::kBoundedStaleness:
      return CheckStaleness(file, field.Member("bounded_staleness"));
    case v1::Consistency::kAsync:
      return CheckStaleness(file, field.Member("async"));
    case v1::Consistency::kBestOf:
      return CheckBestOf(file, field.Member("best_of"));
    case v1::Consistency::kSync:
    case v1::Consistency::KIND_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
