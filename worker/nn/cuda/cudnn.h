// The part of cuDNN's graph API that convolutions need, loaded at run time. A program that can use
// it also starts, and is built, where it is missing: the declarations are this project's own.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUDNN_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUDNN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads::cuda {

struct CudnnContext;
using CudnnHandle = CudnnContext*;
using CudnnDescriptor = void*;

// The values of cuDNN 9 (cudnn_graph.h).
enum class CudnnStatus : int {
  kSuccess = 0,
  kBadParam = 2000,
  kNotSupported = 3000,
  kHostAllocationFailed = 4003,
  kDeviceAllocationFailed = 4004,
  kExecutionFailed = 5000,
};

enum class CudnnDescriptorType : int {
  kConvolution = 1,
  kEngine = 2,
  kEngineConfiguration = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kDeviceProperties = 38,  // since 9.11
};

enum class CudnnAttribute : int {
  kConvolutionComputeType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionDimensions = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDeviceProperties = 204,
  kConfigurationEngine = 300,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspaceSize = 402,
  kPlanDeviceProperties = 407,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardWeights = 703,
  kForwardInput = 704,
  kForwardOutput = 705,
  kBackwardDataAlpha = 706,
  kBackwardDataBeta = 707,
  kBackwardDataConvolution = 708,
  kBackwardDataWeights = 709,
  kBackwardDataInput = 710,
  kBackwardDataOutput = 711,
  kBackwardFilterAlpha = 712,
  kBackwardFilterBeta = 713,
  kBackwardFilterConvolution = 714,
  kBackwardFilterWeights = 715,
  kBackwardFilterInput = 716,
  kBackwardFilterOutput = 717,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumericalNotes = 1303,
  kDevicePropertiesJson = 2702,
};

// The types of attributes' values.
enum class CudnnType : int {
  kHandle = 0,
  kDataType = 1,
  kInt64 = 3,
  kFloat = 4,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kDescriptor = 15,
  kChar = 24,
};

enum class CudnnDataType : int { kFloat = 0, kBfloat16 = 9 };
enum class CudnnConvolutionMode : int { kCrossCorrelation = 1 };
enum class CudnnHeuristicMode : int { kFallback = 2, kA = 3 };

// What an engine does to numbers.
enum class CudnnNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinograd4x4 = 6,
  kWinograd6x6 = 7,
  kWinograd13x13 = 8,
  kStrictNan = 9,
};

// The functions of cuDNN that this program uses. Streams are cudaStream_t.
struct Cudnn {
  size_t (*get_version)();
  const char* (*describe)(CudnnStatus status);
  void (*get_last_error)(char* message, size_t size);
  CudnnStatus (*create)(CudnnHandle* handle);
  CudnnStatus (*destroy)(CudnnHandle handle);
  CudnnStatus (*set_stream)(CudnnHandle handle, void* stream);
  CudnnStatus (*create_descriptor)(CudnnDescriptorType type, CudnnDescriptor* descriptor);
  CudnnStatus (*destroy_descriptor)(CudnnDescriptor descriptor);
  CudnnStatus (*set_attribute)(CudnnDescriptor descriptor, CudnnAttribute name, CudnnType type,
                               int64_t count, const void* values);
  CudnnStatus (*get_attribute)(CudnnDescriptor descriptor, CudnnAttribute name, CudnnType type,
                               int64_t room, int64_t* count, void* values);
  CudnnStatus (*finalize)(CudnnDescriptor descriptor);
  CudnnStatus (*execute)(CudnnHandle handle, CudnnDescriptor plan, CudnnDescriptor pack);
};

// Loads cuDNN 9 on the first call. Later calls return the same result. Unimplemented if it cannot
// be loaded; the message names the library and the reasons. Thread-safe.
absl::StatusOr<const Cudnn*> LoadCudnn();

// Returns "9.19.0", for example.
std::string VersionOf(const Cudnn& cudnn);

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUDNN_H_
