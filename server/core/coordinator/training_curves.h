// The curves of one job: what its members have reported about its training, and its steps per
// second, over time.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_TRAINING_CURVES_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_TRAINING_CURVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/signals/figures.h"

namespace syncgrads::server {

// Points in the order in which they were added. Their number has a limit: if there would be more,
// every second point is removed, and from then on only every second one is added, then every
// fourth one, and so on. Thread-compatible.
template <typename Point>
class Curve {
 public:
  // An even number.
  static constexpr size_t kMaxPoints = 512;

  void Add(Point point) {
    if (offered_++ % stride_ != 0) return;
    if (points_.size() == kMaxPoints) {
      for (size_t i = 0; i < kMaxPoints / 2; ++i) points_[i] = std::move(points_[2 * i]);
      points_.resize(kMaxPoints / 2);
      stride_ *= 2;
    }
    points_.push_back(std::move(point));
  }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
  // Every `stride_`-th of the points that were passed to Add is kept.
  uint64_t stride_ = 1;
  uint64_t offered_ = 0;
};

struct TrainingPoint {
  absl::Time at;
  // The newest step of any member.
  uint64_t step = 0;
  // The mean of the losses of the members' last batches; NaN if none has reported a loss.
  double loss = 0;
  double steps_per_second = 0;
};

struct ValidationPoint {
  absl::Time at;
  // Not null. Shared, so that curves can be copied while a lock is held.
  std::shared_ptr<const Validation> validation;
};

// Thread-compatible; the coordinator's is protected by Coordinator::mutex_.
class TrainingCurves {
 public:
  // Whether a second has passed since the last sample.
  bool IsDue(absl::Time now) const;
  // Adds a training point if a member has reported a loss of a later step than at the last sample,
  // or if `steps_per_second` is not 0 or was not 0 at the last sample; and a validation point if a
  // member has reported a validation of a later step than the last point. `figures`: those of the
  // members that have reported any, in rank order; the first one that has the newest validation
  // counts.
  void Sample(const std::vector<TrainingFigures>& figures, double steps_per_second, absl::Time now);

  const std::vector<TrainingPoint>& training() const { return training_.points(); }
  const std::vector<ValidationPoint>& validation() const { return validation_.points(); }

 private:
  void SampleTraining(const std::vector<TrainingFigures>& figures, double steps_per_second,
                      absl::Time now);
  void SampleValidation(const std::vector<TrainingFigures>& figures, absl::Time now);

  absl::Time sampled_ = absl::InfinitePast();
  // The newest steps of any member, and the steps per second, in the last sample.
  uint64_t step_ = 0;
  double steps_per_second_ = 0;
  uint64_t validated_step_ = 0;
  Curve<TrainingPoint> training_;
  Curve<ValidationPoint> validation_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_TRAINING_CURVES_H_
