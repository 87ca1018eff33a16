#include "worker/report/team_loss.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr uint64_t kMaxInterval = uint64_t{1} << 20;

}  // namespace

TeamLoss::TeamLoss(Team& team, Progress& progress, const Clock& clock)
    : team_(team), progress_(progress), clock_(clock), began_(clock.Now()) {}

absl::Status TeamLoss::Stepped(uint64_t step, uint64_t rows, std::optional<double> loss,
                               bool is_last) {
  const auto weight = static_cast<double>(rows);
  own_[kRows] += weight;
  if (loss.has_value()) {
    own_[kLosses] += *loss * weight;
    own_[kRowsWithLoss] += weight;
  }
  if (step < end_ && !is_last) return absl::OkStatus();
  const bool waits = is_last || end_ == 0;
  SYNCGRADS_RETURN_IF_ERROR(Finish());
  SYNCGRADS_RETURN_IF_ERROR(Start(step));
  return waits ? Finish() : absl::OkStatus();
}

absl::Status TeamLoss::Start(uint64_t step) {
  const absl::Time now = clock_.Now();
  own_[kSeconds] = absl::ToDoubleSeconds(now - std::exchange(began_, now));
  sums_ = std::exchange(own_, {});
  step_ = step;
  end_ = step + interval_;
  SYNCGRADS_ASSIGN_OR_RETURN(
      wait_, team_.StartAllReduce("training loss", absl::MakeSpan(sums_), Reduction::kSum));
  return absl::OkStatus();
}

absl::Status TeamLoss::Finish() {
  if (wait_ == nullptr) return absl::OkStatus();
  Team::WaitForAll wait = std::exchange(wait_, nullptr);
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t workers, wait());
  const absl::Duration took = absl::Seconds(sums_[kSeconds] / workers);
  if (took < kShortInterval) {
    interval_ = std::min(2 * interval_, kMaxInterval);
  } else if (took > kLongInterval) {
    interval_ = std::max<uint64_t>(interval_ / 2, 1);
  }
  TeamAverage average = {.step = step_};
  if (sums_[kRowsWithLoss] > 0) average.loss = sums_[kLosses] / sums_[kRowsWithLoss];
  if (took > absl::ZeroDuration()) {
    average.rows_per_s = sums_[kRows] / absl::ToDoubleSeconds(took);
  }
  progress_.Averaged(average);
  return absl::OkStatus();
}

}  // namespace syncgrads
