// Convolutions by cuDNN: an execution plan for each, which is chosen once and kept.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CONVOLUTION_PLANS_H_
#define SYNCGRADS_WORKER_NN_CUDA_CONVOLUTION_PLANS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/nn/cuda/cudnn.h"
#include "worker/nn/window.h"

namespace syncgrads::cuda {

// The alignment of tensors in the device's memory, in bytes.
inline constexpr int64_t kPlanAlignment = 16;

// What is computed. The other two tensors are given.
enum class ConvolutionPass {
  kOutput,
  kInputGradient,
  kWeightGradient,
};

// Sums are always float32.
enum class ConvolutionType {
  kF32,   // float32, exact products
  kTf32,  // float32, factors may be rounded to 11 significant bits
  kBf16,  // bfloat16
};

// A convolution of images in NHWC order, with weights in the order of PackWeights (kernels.h):
// [outputs, height, width, channels].
struct PlannedConvolution {
  Window window;
  int64_t samples = 0;
  int64_t outputs = 0;  // output channels
  ConvolutionPass pass = ConvolutionPass::kOutput;
  ConvolutionType type = ConvolutionType::kF32;
};

// Addresses in the device's memory, aligned to kPlanAlignment. The tensor that the pass computes is
// overwritten; the others are read.
struct ConvolutionTensors {
  const void* input = nullptr;    // the images, or their gradient
  const void* weights = nullptr;  // or their gradient
  const void* output = nullptr;   // or its gradient
};

// Owns descriptors of cuDNN, which refer to earlier ones only. Frees the last one first.
class Descriptors {
 public:
  struct Deleter {
    const Cudnn* cudnn = nullptr;
    void operator()(CudnnDescriptor descriptor) const { cudnn->destroy_descriptor(descriptor); }
  };
  using Owner = std::unique_ptr<void, Deleter>;

  Descriptors() = default;
  Descriptors(Descriptors&&) = default;
  Descriptors& operator=(Descriptors&& other) noexcept {
    std::swap(all_, other.all_);
    return *this;
  }
  ~Descriptors() {
    while (!all_.empty()) all_.pop_back();
  }

  void Add(Owner descriptor) { all_.push_back(std::move(descriptor)); }
  void Add(Descriptors&& others) {
    for (Owner& owner : others.all_) all_.push_back(std::move(owner));
    others.all_.clear();
  }
  Owner Take(size_t index) { return std::move(all_[index]); }
  CudnnDescriptor last() const { return all_.back().get(); }
  // Forgets all of them without freeing them.
  void Abandon() {
    for (Owner& owner : all_) owner.release();
    all_.clear();
  }

 private:
  std::vector<Owner> all_;
};

struct ConvolutionPlan {
  Descriptors descriptors;  // the plan is the last one; the others are what it was made from
  int64_t workspace_bytes = 0;
  std::vector<CudnnNote> notes;  // those of the plan's engine
};

// The plans of one device. cuDNN's heuristics choose the engine, without measuring: the same
// version of cuDNN chooses the same engine on devices of the same kind. Engines that do not give
// the same bits every time are never used. Neither are those that round more than the type allows,
// nor transforms (Winograd, FFT), whose errors are larger.
//
// Not thread-safe, but different threads may use it one after another, with the device as their
// current one.
class ConvolutionPlans {
 public:
  struct Options {
    // Limit on a plan's workspace.
    int64_t workspace_bytes = int64_t{256} << 20;
    // Called once for each convolution that cuDNN cannot compute, at most kMostWarnings times.
    std::function<void(const std::string& warning)> warn;
  };
  static constexpr int kMostWarnings = 8;
  // No plan is freed before the end, because work that was queued with it may need it. More plans
  // than these are refused.
  static constexpr size_t kMostPlans = 4096;

  // For the current CUDA device. Plans are executed on `stream`, a cudaStream_t. `cudnn` must
  // outlive the result. Internal if cuDNN cannot be set up.
  static absl::StatusOr<std::unique_ptr<ConvolutionPlans>> Create(const Cudnn& cudnn, void* stream,
                                                                  Options options);
  // For a device with these properties (JSON), which need not exist. The plans cannot be executed.
  // Unimplemented before cuDNN 9.11.
  static absl::StatusOr<std::unique_ptr<ConvolutionPlans>> CreateFor(const Cudnn& cudnn,
                                                                     const std::string& properties,
                                                                     Options options);
  // What was queued with the plans must have ended.
  ~ConvolutionPlans();

  // Returns the plan of a convolution. It stays valid until Execute fails.
  //
  // Errors:
  //   Unimplemented      there is no plan, or an execution has failed; later calls return the same
  //   ResourceExhausted  there was no memory; a later call may succeed
  absl::StatusOr<const ConvolutionPlan*> Find(const PlannedConvolution& convolution);

  // Queues a convolution whose plan Find has returned. `workspace` has room for its
  // workspace_bytes; null if they are 0.
  //
  // Errors: those of Find
  absl::Status Execute(const PlannedConvolution& convolution, const ConvolutionTensors& tensors,
                       void* workspace);

  // Forgets all plans without calling cuDNN, for a device that hangs. The object can only be
  // destroyed afterwards.
  void Abandon();

 private:
  using Key = std::array<int64_t, 11>;

  ConvolutionPlans(const Cudnn& cudnn, Options options)
      : cudnn_(cudnn), options_(std::move(options)) {}
  static Key KeyOf(const PlannedConvolution& convolution);
  // Makes the plan of a configuration of an engine. Errors: those of Find.
  absl::StatusOr<ConvolutionPlan> MakePlan(CudnnDescriptor configuration,
                                           ConvolutionType type) const;
  absl::StatusOr<ConvolutionPlan> Choose(const PlannedConvolution& convolution) const;
  absl::Status Queue(const ConvolutionPlan& plan, const ConvolutionTensors& tensors,
                     void* workspace) const;
  // Keeps `error` for later calls of Find, and warns. Returns it.
  absl::Status Refuse(const PlannedConvolution& convolution, const absl::Status& error);

  const Cudnn& cudnn_;
  const Options options_;
  CudnnHandle handle_ = nullptr;
  Descriptors::Owner properties_;  // null: those of the current device
  std::map<Key, absl::StatusOr<ConvolutionPlan>> plans_;
  std::vector<ConvolutionPlan> retired_;  // their executions failed later
  int warnings_ = 0;
};

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CONVOLUTION_PLANS_H_
