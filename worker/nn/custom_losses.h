// Losses that a program adds to those that job files can name.

#ifndef SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_
#define SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// A loss of a batch as a whole, computed on the processor in double.
//
// Thread-safe.
class CustomLoss {
 public:
  virtual ~CustomLoss() = default;

  // The loss of a batch, before it is divided as loss.normalisation says. `outputs` has a
  // row for each of `targets`, which are numbers, or classes from 0. Unless it is null,
  // sets `gradient` to the derivatives by the outputs.
  //
  // Where a batch goes through the model in parts (accumulate), or is of rows to evaluate,
  // each part is a batch, and their losses are added up.
  virtual double Compute(const Matrix<double>& outputs, absl::Span<const double> targets,
                         Matrix<double>* gradient) const = 0;
};

// What a job file says of a loss.
struct CustomLossOptions {
  // Of the model: columns of a batch of outputs.
  int64_t outputs = 0;
  std::map<std::string, double> settings;
};

// Not thread-safe while losses are added.
class CustomLosses {
 public:
  using Factory =
      std::function<absl::StatusOr<std::unique_ptr<CustomLoss>>(const CustomLossOptions& options)>;

  // Job files can then say `loss { custom { kind: "KIND" } }`. `L` is derived from
  // CustomLoss and has
  //   static absl::StatusOr<std::unique_ptr<CustomLoss>> Create(
  //       const CustomLossOptions& options);
  // A kind is added once; the first one stays.
  template <typename L>
  void Add(const std::string& kind) {
    factories_.emplace(kind, L::Create);
  }

  // InvalidArgument if there is no such kind, naming those there are; or as the loss's
  // own Create.
  absl::StatusOr<std::unique_ptr<CustomLoss>> Create(const std::string& kind,
                                                     const CustomLossOptions& options) const;

 private:
  std::map<std::string, Factory> factories_;
};

// Those of a program that adds none.
const CustomLosses& NoCustomLosses();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CUSTOM_LOSSES_H_
