// Losses that a program registers in addition to the built-in losses of job files.

#ifndef SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_
#define SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A loss of a whole batch, computed on the CPU in double.
//
// Thread-safe.
class CustomLoss {
 public:
  virtual ~CustomLoss() = default;

  // Returns the loss of a batch, before the division that loss.reduction selects. `targets` has
  // CustomLossOptions::targets_per_row numbers for each row of `outputs`, row after row: those of
  // the columns data.target and data.more_targets, or a class from 0. If `gradient` is
  // not null, it has the size of `outputs` and holds zeros; the function sets it to the
  // derivatives of the loss by the outputs.
  //
  // With gradient accumulation, and in evaluation, a batch is split into parts. The function is
  // then called for each part, and the losses are added.
  virtual double Compute(const Matrix<double>& outputs, absl::Span<const double> targets,
                         Matrix<double>* gradient) const = 0;
};

// The options of a custom loss in a job file.
struct CustomLossOptions {
  // The number of the model's outputs, which is the number of columns of a batch of outputs.
  int64_t outputs = 0;
  std::map<std::string, double> settings;
  // The number of targets of each row: 1, and those of data.more_targets.
  size_t targets_per_row = 1;
};

// The registered loss kinds. All kinds must be added before several threads use the object;
// after that it is thread-safe.
class CustomLosses {
 public:
  using Factory =
      std::function<absl::StatusOr<std::unique_ptr<CustomLoss>>(const CustomLossOptions& options)>;

  // Registers a loss, which job files then select with `loss { custom { kind: "KIND" } }`. `L`
  // must be derived from CustomLoss and have
  //   static absl::StatusOr<std::unique_ptr<CustomLoss>> Create(
  //       const CustomLossOptions& options);
  // If `kind` is registered already, the call does nothing.
  template <typename L>
  void Add(const std::string& kind) {
    factories_.emplace(kind, L::Create);
  }

  // Creates a loss.
  //
  // Errors:
  //   InvalidArgument  `kind` is not registered; names the registered kinds
  //   others           those of the loss's Create
  absl::StatusOr<std::unique_ptr<CustomLoss>> Create(const std::string& kind,
                                                     const CustomLossOptions& options) const;

 private:
  std::map<std::string, Factory> factories_;
};

// An empty registry, for programs without custom losses.
const CustomLosses& NoCustomLosses();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_
