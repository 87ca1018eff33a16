#include "worker/nn/accelerators.h"

namespace syncgrads {
namespace {

class None : public Accelerators {
 public:
  absl::StatusOr<int> Count() const override { return Error(); }
  absl::StatusOr<std::string> Name(int) const override { return Error(); }
  absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(int, MatrixPrecision) const override {
    return Error();
  }
  absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int) const override { return Error(); }

 private:
  static absl::Status Error() {
    return absl::UnimplementedError(
        "this program was built without CUDA. `./dev build` includes CUDA if it finds the CUDA "
        "toolkit, version 12 or later, in $CUDA_HOME or /usr/local/cuda (docs/devices.md); "
        "--device=cpu works");
  }
};

}  // namespace

const Accelerators& NoAccelerators() {
  static const auto& none = *new None();
  return none;
}

}  // namespace syncgrads
