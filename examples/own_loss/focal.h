// A loss of one's own: -(1 - p)^gamma log p of the true class's probability p, which
// gives rows that are right already less weight (Lin et al. 2017).

#ifndef SYNCGRADS_EXAMPLES_OWN_LOSS_FOCAL_H_
#define SYNCGRADS_EXAMPLES_OWN_LOSS_FOCAL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/loss_kind.h"

namespace syncgrads {

// Job files say `custom { kind: "focal" settings { key: "gamma" value: 2 } }`. The model
// has an output for each class.
class Focal : public CustomLoss {
 public:
  static absl::StatusOr<std::unique_ptr<CustomLoss>> Create(const CustomLossOptions& options) {
    const auto gamma = options.settings.find("gamma");
    if (gamma == options.settings.end() || !(gamma->second >= 0)) {
      return absl::InvalidArgumentError(
          "loss \"focal\" needs a setting \"gamma\" that is not negative");
    }
    return std::make_unique<Focal>(gamma->second);
  }

  explicit Focal(double gamma) : gamma_(gamma) {}

  double Compute(const Matrix<double>& outputs, absl::Span<const double> targets,
                 Matrix<double>* gradient) const override {
    double sum = 0;
    for (Eigen::Index row = 0; row < outputs.rows(); ++row) {
      const auto target = static_cast<Eigen::Index>(targets[static_cast<size_t>(row)]);
      const double log_sum = LogSumExp(outputs.cols(), outputs.row(row).data());
      const double log_p = outputs(row, target) - log_sum;
      const double p = std::exp(log_p);
      const double rest = std::max(0.0, 1 - p);
      sum -= std::pow(rest, gamma_) * log_p;
      if (gradient == nullptr) continue;
      // By the true class's output without its own factor, p times the derivative by p.
      const double towards =
          gamma_ == 0 || rest == 0 ? 0 : gamma_ * p * std::pow(rest, gamma_ - 1) * log_p;
      const double slope = towards - std::pow(rest, gamma_);
      for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
        const double wanted = i == target ? 1 : 0;
        (*gradient)(row, i) = slope * (wanted - std::exp(outputs(row, i) - log_sum));
      }
    }
    return sum;
  }

 private:
  const double gamma_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_EXAMPLES_OWN_LOSS_FOCAL_H_
