#include "worker/nn/cuda/cuda_accelerators.h"

#include <cuda_runtime_api.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/nn/cuda/cuda_device.h"
#include "worker/nn/cuda/cuda_watchdog.h"
#include "worker/nn/cuda/cudnn.h"

namespace syncgrads {
namespace {

// The first call of CUDA starts the driver. It has the same deadline as calls that use a device.
template <typename Call>
cudaError_t Time(const char* what, Call call) {
  cuda::CudaWatchdog watchdog("CUDA", cuda::CudaOptions().timeout);
  return watchdog.Time(what, call);
}

class OfThisMachine : public Accelerators {
 public:
  explicit OfThisMachine(bool cudnn) : cudnn_(cudnn) {}

  absl::StatusOr<int> Count() const override {
    int count = 0;
    const cudaError_t error =
        Time("cudaGetDeviceCount", [&] { return cudaGetDeviceCount(&count); });
    if (error == cudaSuccess && count > 0) return count;
    const char* what = error == cudaSuccess ? "none found" : cudaGetErrorString(error);
    return absl::UnimplementedError(absl::StrCat(
        "this machine has no CUDA device that can be used (", what, "); --device=cpu works"));
  }

  absl::StatusOr<std::string> Name(int index) const override {
    SYNCGRADS_RETURN_IF_ERROR(CheckIndex(index));
    cudaDeviceProp properties;
    const cudaError_t error = Time("cudaGetDeviceProperties",
                                   [&] { return cudaGetDeviceProperties(&properties, index); });
    if (error != cudaSuccess) {
      return absl::InternalError(absl::StrCat(
          "CUDA device ", index, " does not report its name: ", cudaGetErrorString(error)));
    }
    return std::string(properties.name);
  }

  std::string Libraries() const override {
    if (!cudnn_) return "convolutions without cuDNN";
    const absl::StatusOr<const cuda::Cudnn*> cudnn = cuda::LoadCudnn();
    if (cudnn.ok()) return absl::StrCat("convolutions by cuDNN ", cuda::VersionOf(**cudnn));
    return absl::StrCat("convolutions without cuDNN: ", cudnn.status().message());
  }

  absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(
      int index, MatrixPrecision precision) const override {
    if (precision == MatrixPrecision::kBf16) return Make<float, cuda::Bf16>(index, precision);
    return Make<float, float>(index, precision);
  }
  absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int index) const override {
    return Make<double, double>(index, MatrixPrecision::kF32);
  }

 private:
  absl::Status CheckIndex(int index) const {
    SYNCGRADS_ASSIGN_OR_RETURN(const int count, Count());
    if (index >= 0 && index < count) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("CUDA device ", index,
                                                   " does not exist: this machine has ", count,
                                                   " CUDA devices, numbered from 0"));
  }
  // The device stores activations as S.
  template <typename T, typename S>
  absl::StatusOr<std::unique_ptr<Device<T>>> Make(int index, MatrixPrecision precision) const {
    SYNCGRADS_RETURN_IF_ERROR(CheckIndex(index));
    cuda::CudaOptions options;
    options.precision = precision;
    options.cudnn = cudnn_;
    options.warn = [](const std::string& warning) {
      std::cerr << absl::StrCat("warning: ", warning, "\n");
    };
    return cuda::CudaDevice<T, S>::Create(index, options);
  }

  const bool cudnn_;
};

}  // namespace

const Accelerators& CudaAccelerators(bool cudnn) {
  static const auto& with_cudnn = *new OfThisMachine(true);
  static const auto& without_cudnn = *new OfThisMachine(false);
  return cudnn ? with_cudnn : without_cudnn;
}

}  // namespace syncgrads
