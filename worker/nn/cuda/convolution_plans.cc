#include "worker/nn/cuda/convolution_plans.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace syncgrads::cuda {
namespace {

using Attribute = CudnnAttribute;
using Kind = CudnnDescriptorType;
using Type = CudnnType;

// The tensors' numbers in a graph.
constexpr int64_t kInputId = 1;
constexpr int64_t kWeightsId = 2;
constexpr int64_t kOutputId = 3;

// The operation of a pass, and its attributes.
struct Operation {
  Kind kind;
  Attribute alpha, beta, convolution, weights, input, output;
};

Operation OperationOf(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kOutput:
      break;
    case ConvolutionPass::kInputGradient:
      return {Kind::kBackwardData,
              Attribute::kBackwardDataAlpha,
              Attribute::kBackwardDataBeta,
              Attribute::kBackwardDataConvolution,
              Attribute::kBackwardDataWeights,
              Attribute::kBackwardDataInput,
              Attribute::kBackwardDataOutput};
    case ConvolutionPass::kWeightGradient:
      return {Kind::kBackwardFilter,
              Attribute::kBackwardFilterAlpha,
              Attribute::kBackwardFilterBeta,
              Attribute::kBackwardFilterConvolution,
              Attribute::kBackwardFilterWeights,
              Attribute::kBackwardFilterInput,
              Attribute::kBackwardFilterOutput};
  }
  return {Kind::kForward,
          Attribute::kForwardAlpha,
          Attribute::kForwardBeta,
          Attribute::kForwardConvolution,
          Attribute::kForwardWeights,
          Attribute::kForwardInput,
          Attribute::kForwardOutput};
}

// Whether an engine with these notes gives the same bits every time, and rounds no more than the
// type allows: with float32 tensors, tensor cores round factors to TF32. A note that this program
// does not know is not allowed.
bool IsAllowed(const std::vector<CudnnNote>& notes, ConvolutionType type) {
  return std::all_of(notes.begin(), notes.end(), [type](CudnnNote note) {
    return note == CudnnNote::kStrictNan ||
           (note == CudnnNote::kTensorCore && type != ConvolutionType::kF32);
  });
}

constexpr int64_t kMostNotes = 32;

std::string Describe(const PlannedConvolution& one) {
  constexpr const char* kPasses[] = {"output", "gradient by the input", "gradient by the weights"};
  constexpr const char* kTypes[] = {"f32", "tf32", "bf16"};
  const Window& window = one.window;
  return absl::StrCat("convolution of ", one.samples, " images ", ToString(window.input), ", ",
                      one.outputs, " outputs, window ", window.height, "x", window.width,
                      ", stride ", window.stride, ", padding ", window.padding, ", ",
                      kTypes[static_cast<int>(one.type)], ", ",
                      kPasses[static_cast<int>(one.pass)]);
}

// Calls cuDNN until the first error. After it, calls do nothing.
class Calls {
 public:
  // Descriptors are appended to `descriptors`, which own them.
  Calls(const Cudnn& cudnn, Descriptors& descriptors) : cudnn_(cudnn), descriptors_(descriptors) {}

  const absl::Status& status() const { return status_; }

  CudnnDescriptor Create(Kind kind) {
    if (!status_.ok()) return nullptr;
    CudnnDescriptor descriptor = nullptr;
    Check(cudnn_.create_descriptor(kind, &descriptor), "cudnnBackendCreateDescriptor",
          static_cast<int>(kind));
    if (descriptor != nullptr) {
      descriptors_.Add(Descriptors::Owner(descriptor, Descriptors::Deleter{&cudnn_}));
    }
    return descriptor;
  }

  template <typename Value>
  void SetAll(CudnnDescriptor descriptor, Attribute name, Type type,
              absl::Span<const Value> values) {
    if (!status_.ok()) return;
    Check(cudnn_.set_attribute(descriptor, name, type, static_cast<int64_t>(values.size()),
                               values.data()),
          "cudnnBackendSetAttribute", static_cast<int>(name));
  }
  template <typename Value>
  void Set(CudnnDescriptor descriptor, Attribute name, Type type, const Value& value) {
    SetAll(descriptor, name, type, absl::MakeConstSpan(&value, 1));
  }
  void SetNumbers(CudnnDescriptor descriptor, Attribute name, absl::Span<const int64_t> numbers) {
    SetAll(descriptor, name, Type::kInt64, numbers);
  }

  // Reads at most `room` values; returns how many there are.
  template <typename Value>
  int64_t Get(CudnnDescriptor descriptor, Attribute name, Type type, int64_t room, Value* values) {
    int64_t count = 0;
    if (!status_.ok()) return 0;
    Check(cudnn_.get_attribute(descriptor, name, type, room, &count, values),
          "cudnnBackendGetAttribute", static_cast<int>(name));
    return status_.ok() ? count : 0;
  }

  void Finalize(CudnnDescriptor descriptor, const char* what) {
    if (!status_.ok()) return;
    Check(cudnn_.finalize(descriptor), absl::StrCat("cudnnBackendFinalize of ", what));
  }

  void Check(CudnnStatus status, const std::string& call) {
    if (status == CudnnStatus::kSuccess || !status_.ok()) return;
    char details[512] = "";
    cudnn_.get_last_error(details, sizeof details);
    details[sizeof details - 1] = '\0';
    const std::string message =
        absl::StrCat(call, ": ", cudnn_.describe(status), details[0] == '\0' ? "" : ": ", details);
    const bool has_no_memory = status == CudnnStatus::kHostAllocationFailed ||
                               status == CudnnStatus::kDeviceAllocationFailed;
    status_ =
        has_no_memory ? absl::ResourceExhaustedError(message) : absl::UnimplementedError(message);
  }

 private:
  // `number` is that of a descriptor's type or of an attribute.
  void Check(CudnnStatus status, const char* call, int number) {
    if (status != CudnnStatus::kSuccess) Check(status, absl::StrCat(call, "(", number, ")"));
  }

  const Cudnn& cudnn_;
  Descriptors& descriptors_;
  absl::Status status_;
};

// A tensor in the order first, height, width, channels. cuDNN counts dimensions in the order
// first, channels, height, width.
CudnnDescriptor MakeTensor(Calls& calls, int64_t id, ConvolutionType type, int64_t first,
                           int64_t channels, int64_t height, int64_t width) {
  const CudnnDescriptor tensor = calls.Create(Kind::kTensor);
  calls.Set(tensor, Attribute::kTensorDataType, Type::kDataType,
            type == ConvolutionType::kBf16 ? CudnnDataType::kBfloat16 : CudnnDataType::kFloat);
  calls.SetNumbers(tensor, Attribute::kTensorDimensions, {first, channels, height, width});
  calls.SetNumbers(tensor, Attribute::kTensorStrides,
                   {height * width * channels, 1, width * channels, channels});
  calls.SetNumbers(tensor, Attribute::kTensorId, {id});
  calls.SetNumbers(tensor, Attribute::kTensorAlignment, {kPlanAlignment});
  calls.Finalize(tensor, "a tensor");
  return tensor;
}

CudnnDescriptor MakeGraph(Calls& calls, const PlannedConvolution& one, CudnnHandle handle) {
  const Window& window = one.window;
  const CudnnDescriptor input =
      MakeTensor(calls, kInputId, one.type, one.samples, window.input.channels, window.input.height,
                 window.input.width);
  const CudnnDescriptor weights = MakeTensor(calls, kWeightsId, one.type, one.outputs,
                                             window.input.channels, window.height, window.width);
  const CudnnDescriptor output = MakeTensor(calls, kOutputId, one.type, one.samples, one.outputs,
                                            window.output_height, window.output_width);

  const CudnnDescriptor convolution = calls.Create(Kind::kConvolution);
  calls.Set(convolution, Attribute::kConvolutionComputeType, Type::kDataType,
            CudnnDataType::kFloat);
  calls.Set(convolution, Attribute::kConvolutionMode, Type::kConvolutionMode,
            CudnnConvolutionMode::kCrossCorrelation);
  calls.SetNumbers(convolution, Attribute::kConvolutionDimensions, {2});
  calls.SetNumbers(convolution, Attribute::kConvolutionDilations, {1, 1});
  calls.SetNumbers(convolution, Attribute::kConvolutionStrides, {window.stride, window.stride});
  calls.SetNumbers(convolution, Attribute::kConvolutionPrePaddings,
                   {window.padding, window.padding});
  calls.SetNumbers(convolution, Attribute::kConvolutionPostPaddings,
                   {window.padding, window.padding});
  calls.Finalize(convolution, "a convolution");

  const Operation names = OperationOf(one.pass);
  const CudnnDescriptor operation = calls.Create(names.kind);
  calls.Set(operation, names.alpha, Type::kFloat, 1.0f);
  calls.Set(operation, names.beta, Type::kFloat, 0.0f);
  calls.Set(operation, names.convolution, Type::kDescriptor, convolution);
  calls.Set(operation, names.weights, Type::kDescriptor, weights);
  calls.Set(operation, names.input, Type::kDescriptor, input);
  calls.Set(operation, names.output, Type::kDescriptor, output);
  calls.Finalize(operation, "an operation");

  const CudnnDescriptor graph = calls.Create(Kind::kOperationGraph);
  if (handle != nullptr) calls.Set(graph, Attribute::kGraphHandle, Type::kHandle, handle);
  calls.Set(graph, Attribute::kGraphOperations, Type::kDescriptor, operation);
  calls.Finalize(graph, "an operation graph");
  return graph;
}

}  // namespace

std::string VersionOf(const Cudnn& cudnn) {
  const size_t version = cudnn.get_version();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::unique_ptr<ConvolutionPlans>> ConvolutionPlans::Create(const Cudnn& cudnn,
                                                                           void* stream,
                                                                           Options options) {
  auto plans = absl::WrapUnique(new ConvolutionPlans(cudnn, std::move(options)));
  const auto check = [&cudnn](CudnnStatus status, const char* call) {
    if (status == CudnnStatus::kSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(call, ": ", cudnn.describe(status)));
  };
  SYNCGRADS_RETURN_IF_ERROR(check(cudnn.create(&plans->handle_), "cudnnCreate"));
  SYNCGRADS_RETURN_IF_ERROR(check(cudnn.set_stream(plans->handle_, stream), "cudnnSetStream"));
  return plans;
}

absl::StatusOr<std::unique_ptr<ConvolutionPlans>> ConvolutionPlans::CreateFor(
    const Cudnn& cudnn, const std::string& properties, Options options) {
  auto plans = absl::WrapUnique(new ConvolutionPlans(cudnn, std::move(options)));
  Descriptors descriptors;
  Calls calls(cudnn, descriptors);
  const CudnnDescriptor made = calls.Create(Kind::kDeviceProperties);
  // With the zero at the end.
  calls.SetAll(made, Attribute::kDevicePropertiesJson, Type::kChar,
               absl::MakeConstSpan(properties.c_str(), properties.size() + 1));
  calls.Finalize(made, "a device's properties");
  SYNCGRADS_RETURN_IF_ERROR(calls.status());
  plans->properties_ = descriptors.Take(0);
  return plans;
}

ConvolutionPlans::~ConvolutionPlans() {
  plans_.clear();
  retired_.clear();
  if (handle_ != nullptr) cudnn_.destroy(handle_);
}

void ConvolutionPlans::Abandon() {
  for (auto& [key, plan] : plans_) {
    if (plan.ok()) plan->descriptors.Abandon();
  }
  for (ConvolutionPlan& plan : retired_) plan.descriptors.Abandon();
  plans_.clear();
  properties_.release();
  handle_ = nullptr;
}

ConvolutionPlans::Key ConvolutionPlans::KeyOf(const PlannedConvolution& one) {
  const Window& window = one.window;
  return {window.input.channels,
          window.input.height,
          window.input.width,
          window.height,
          window.width,
          window.stride,
          window.padding,
          one.samples,
          one.outputs,
          static_cast<int64_t>(one.pass),
          static_cast<int64_t>(one.type)};
}

absl::StatusOr<ConvolutionPlan> ConvolutionPlans::MakePlan(CudnnDescriptor configuration,
                                                           ConvolutionType type) const {
  ConvolutionPlan plan;
  Calls calls(cudnn_, plan.descriptors);
  CudnnDescriptor engine = calls.Create(Kind::kEngine);
  calls.Get(configuration, Attribute::kConfigurationEngine, Type::kDescriptor, 1, &engine);
  plan.notes.resize(kMostNotes);
  const int64_t notes = calls.Get(engine, Attribute::kEngineNumericalNotes, Type::kNumericalNote,
                                  kMostNotes, plan.notes.data());
  SYNCGRADS_RETURN_IF_ERROR(calls.status());
  plan.notes.resize(static_cast<size_t>(std::min(notes, kMostNotes)));
  if (!IsAllowed(plan.notes, type)) {
    return absl::UnimplementedError("the engine is not deterministic, or rounds more");
  }
  const CudnnDescriptor made = calls.Create(Kind::kExecutionPlan);
  if (handle_ != nullptr) calls.Set(made, Attribute::kPlanHandle, Type::kHandle, handle_);
  if (properties_ != nullptr) {
    calls.Set(made, Attribute::kPlanDeviceProperties, Type::kDescriptor, properties_.get());
  }
  calls.Set(made, Attribute::kPlanConfiguration, Type::kDescriptor, configuration);
  calls.Finalize(made, "a plan");
  calls.Get(made, Attribute::kPlanWorkspaceSize, Type::kInt64, 1, &plan.workspace_bytes);
  SYNCGRADS_RETURN_IF_ERROR(calls.status());
  if (plan.workspace_bytes > options_.workspace_bytes) {
    return absl::UnimplementedError(absl::StrCat("the engine needs a workspace of ",
                                                 plan.workspace_bytes, " bytes, the limit is ",
                                                 options_.workspace_bytes));
  }
  return plan;
}

absl::StatusOr<ConvolutionPlan> ConvolutionPlans::Choose(const PlannedConvolution& one) const {
  Descriptors descriptors;
  Calls calls(cudnn_, descriptors);
  const CudnnDescriptor graph = MakeGraph(calls, one, handle_);
  SYNCGRADS_RETURN_IF_ERROR(calls.status());
  int64_t engines = 0;
  absl::Status reason;
  for (const CudnnHeuristicMode mode : {CudnnHeuristicMode::kA, CudnnHeuristicMode::kFallback}) {
    Descriptors proposals;
    Calls propose(cudnn_, proposals);
    const CudnnDescriptor heuristic = propose.Create(Kind::kEngineHeuristic);
    propose.Set(heuristic, Attribute::kHeuristicGraph, Type::kDescriptor, graph);
    propose.Set(heuristic, Attribute::kHeuristicMode, Type::kHeuristicMode, mode);
    if (properties_ != nullptr) {
      propose.Set(heuristic, Attribute::kHeuristicDeviceProperties, Type::kDescriptor,
                  properties_.get());
    }
    propose.Finalize(heuristic, "a heuristic");
    // cuDNN counts the proposals, then writes them to descriptors that exist.
    std::vector<CudnnDescriptor> configurations(
        static_cast<size_t>(propose.Get(heuristic, Attribute::kHeuristicResults, Type::kDescriptor,
                                        0, static_cast<CudnnDescriptor*>(nullptr))));
    for (CudnnDescriptor& configuration : configurations) {
      configuration = propose.Create(Kind::kEngineConfiguration);
    }
    if (!configurations.empty()) {
      const int64_t count =
          propose.Get(heuristic, Attribute::kHeuristicResults, Type::kDescriptor,
                      static_cast<int64_t>(configurations.size()), configurations.data());
      configurations.resize(std::min(configurations.size(), static_cast<size_t>(count)));
    }
    if (absl::IsResourceExhausted(propose.status())) return propose.status();
    if (!propose.status().ok()) reason = propose.status();
    for (size_t i = 0; i < configurations.size(); ++i) {
      ++engines;
      absl::StatusOr<ConvolutionPlan> plan = MakePlan(configurations[i], one.type);
      if (plan.ok()) {
        descriptors.Add(proposals.Take(i + 1));  // the configuration; the first is the heuristic
        descriptors.Add(std::move(plan->descriptors));
        plan->descriptors = std::move(descriptors);
        return plan;
      }
      if (absl::IsResourceExhausted(plan.status())) return plan.status();
      reason = plan.status();
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      "none of the ", engines, " engines can be used, the last one because: ", reason.message()));
}

absl::Status ConvolutionPlans::Refuse(const PlannedConvolution& one, const absl::Status& error) {
  if (options_.warn && warnings_ < kMostWarnings) {
    ++warnings_;
    options_.warn(
        absl::StrCat("cuDNN does not compute the ", Describe(one),
                     ", which is computed by matrix products instead: ", error.message()));
  }
  const auto found = plans_.find(KeyOf(one));
  if (found != plans_.end() && found->second.ok()) retired_.push_back(*std::move(found->second));
  plans_.insert_or_assign(KeyOf(one), error);
  return error;
}

absl::StatusOr<const ConvolutionPlan*> ConvolutionPlans::Find(const PlannedConvolution& one) {
  const auto found = plans_.find(KeyOf(one));
  if (found != plans_.end()) {
    if (!found->second.ok()) return found->second.status();
    return &*found->second;
  }
  if (plans_.size() >= kMostPlans) {
    return absl::UnimplementedError(absl::StrCat("there are ", kMostPlans, " plans already"));
  }
  absl::StatusOr<ConvolutionPlan> plan = Choose(one);
  if (absl::IsResourceExhausted(plan.status())) return plan.status();
  if (!plan.ok()) return Refuse(one, plan.status());
  return &*plans_.emplace(KeyOf(one), std::move(plan)).first->second;
}

absl::Status ConvolutionPlans::Queue(const ConvolutionPlan& plan, const ConvolutionTensors& tensors,
                                     void* workspace) const {
  Descriptors descriptors;
  Calls calls(cudnn_, descriptors);
  const CudnnDescriptor pack = calls.Create(Kind::kVariantPack);
  calls.SetNumbers(pack, Attribute::kPackIds, {kInputId, kWeightsId, kOutputId});
  const std::array<const void*, 3> pointers = {tensors.input, tensors.weights, tensors.output};
  calls.SetAll(pack, Attribute::kPackPointers, Type::kPointer, absl::MakeConstSpan(pointers));
  calls.Set(pack, Attribute::kPackWorkspace, Type::kPointer, workspace);
  calls.Finalize(pack, "a variant pack");
  if (calls.status().ok()) {
    calls.Check(cudnn_.execute(handle_, plan.descriptors.last(), pack), "cudnnBackendExecute");
  }
  return calls.status();
}

absl::Status ConvolutionPlans::Execute(const PlannedConvolution& one,
                                       const ConvolutionTensors& tensors, void* workspace) {
  SYNCGRADS_ASSIGN_OR_RETURN(const ConvolutionPlan* plan, Find(one));
  const absl::Status status = Queue(*plan, tensors, workspace);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return Refuse(one, status);
}

}  // namespace syncgrads::cuda
