#include "worker/train/step_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads {
namespace {

// With fewer norms the median does not show what is usual.
constexpr size_t kLeastHistory = 8;
// How many steps are warned of; later ones are only counted.
constexpr uint64_t kMostWarnings = 10;

}  // namespace

std::string ToString(const SkippedSteps& skipped) {
  std::vector<std::string> reasons;
  const auto add = [&reasons](uint64_t count, absl::string_view reason) {
    if (count > 0) reasons.push_back(absl::StrCat(count, " ", reason));
  };
  add(skipped.non_finite, "not finite");
  add(skipped.outliers, "too large");
  add(skipped.out_of_memory, "out of memory");
  return absl::StrCat(skipped.total(),
                      skipped.total() == 1 ? " step: " : " steps: ", absl::StrJoin(reasons, ", "));
}

StepGuard::StepGuard(Options options) : options_(std::move(options)) {}

void StepGuard::Begin(uint64_t step) {
  step_ = step;
  note_.reset();
  norm_.reset();
}

double StepGuard::MedianNorm() const {
  std::vector<double> norms(norms_.begin(), norms_.end());
  const auto middle = norms.begin() + static_cast<ptrdiff_t>(norms.size() / 2);
  std::nth_element(norms.begin(), middle, norms.end());
  return *middle;
}

absl::StatusOr<bool> StepGuard::Admit(double norm) {
  if (!std::isfinite(norm)) {
    return Refuse(options_.non_finite,
                  {&SkippedSteps::non_finite, absl::StrCat("the norm of its gradient is ", norm)});
  }
  norm_ = norm;
  if (norms_.size() < std::min(kLeastHistory, options_.history)) return true;
  const double median = MedianNorm();
  if (!(median > 0) || norm <= options_.outlier_factor * median) return true;
  return Refuse(options_.outliers,
                {&SkippedSteps::outliers,
                 absl::StrCat("the norm of its gradient is ", norm, ", ", norm / median,
                              " times the median of the previous ", norms_.size(),
                              "; outlier_factor is ", options_.outlier_factor)});
}

absl::StatusOr<bool> StepGuard::Refuse(OnBad policy, Note note) {
  if (policy == OnBad::kAllow) return true;
  norm_.reset();
  if (policy == OnBad::kReject) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step_, ": ", note.what));
  }
  note_ = std::move(note);
  return false;
}

void StepGuard::NoteOutOfMemory(absl::string_view to_do) {
  note_ = Note{&SkippedSteps::out_of_memory, absl::StrCat("out of memory: ", to_do)};
  norm_.reset();
}

void StepGuard::NoteLeftOut(absl::string_view first, size_t tensors) {
  note_ = Note{&SkippedSteps::non_finite,
               tensors == 1 ? absl::StrCat("its gradient of \"", first, "\" is not finite")
                            : absl::StrCat("its gradients of \"", first, "\" and ", tensors - 1,
                                           " more tensors are not finite")};
}

absl::Status StepGuard::Finish() {
  if (norm_.has_value()) {
    norms_.push_back(*norm_);
    if (norms_.size() > options_.history) norms_.pop_front();
  }
  if (!note_.has_value()) {
    in_a_row_ = 0;
    return absl::OkStatus();
  }
  ++(skipped_.*note_->reason);
  ++in_a_row_;
  if (options_.warn && skipped_.total() <= kMostWarnings) {
    options_.warn(
        absl::StrCat("step ", step_, " is skipped by this worker: ", note_->what,
                     skipped_.total() == kMostWarnings ? "; further skips are only counted" : ""));
  }
  if (in_a_row_ <= options_.max_in_a_row) return absl::OkStatus();
  const std::string message =
      absl::StrCat("this worker has skipped ", in_a_row_, " steps in a row, up to step ", step_,
                   ", but max_skips_in_a_row is ", options_.max_in_a_row, ": ", note_->what);
  return note_->reason == &SkippedSteps::out_of_memory ? absl::ResourceExhaustedError(message)
                                                       : absl::InvalidArgumentError(message);
}

}  // namespace syncgrads
