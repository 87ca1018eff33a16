#include "tests/worker/nn/cuda/emulation/cudnn_emulation.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "worker/nn/cuda/bf16.h"
#include "worker/nn/cuda/cudnn.h"

namespace syncgrads::cuda {

struct CudnnContext {
  cudaStream_t stream = nullptr;
};

}  // namespace syncgrads::cuda

namespace syncgrads::emulation {
namespace {

using cuda::CudnnAttribute;
using cuda::CudnnContext;
using cuda::CudnnConvolutionMode;
using cuda::CudnnDataType;
using cuda::CudnnDescriptor;
using cuda::CudnnDescriptorType;
using cuda::CudnnHandle;
using cuda::CudnnHeuristicMode;
using cuda::CudnnNote;
using cuda::CudnnStatus;
using cuda::CudnnType;

using Attribute = CudnnAttribute;
using Kind = CudnnDescriptorType;
using Type = CudnnType;

struct Engine {
  std::vector<CudnnNote> notes;
  int64_t workspace_bytes = 0;
  bool has_plans = true;
};

// The options, the objects that exist, and what has been executed. One mutex protects all of it.
struct Library {
  static Library& Get() {
    static auto& library = *new Library();
    return library;
  }

  // The heuristic's mode A proposes the first six, its fallback the others.
  std::vector<Engine> engines() const {
    using enum CudnnNote;
    const int64_t bytes = options.workspace_bytes;
    const int64_t too_large = int64_t{1} << 40;
    return {{{kNondeterministic}},
            {{kTensorCore, kNondeterministic}},
            {{kTensorCore, kReducedPrecisionReduction}},
            {{kTensorCore}, too_large},
            {{kTensorCore}, 0, false},
            {{kTensorCore}, 2 * bytes, options.has_plans},
            {{}, 0, false},
            {{}, bytes, options.has_plans}};
  }

  std::recursive_mutex mutex;
  CudnnOptions options;
  std::vector<int> executed;
  // Objects that were not destroyed, because a device hung, stay here.
  std::set<const void*> objects;
  std::string error;
};

constexpr size_t kFirstFallback = 6;

using Lock = std::lock_guard<std::recursive_mutex>;

float RoundToTf32(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0xfff + ((bits >> 13) & 1);
  return std::bit_cast<float>(bits >> 13 << 13);
}

// Numbers of a tensor, which are float32 or bfloat16.
struct Tensor {
  const void* data = nullptr;
  CudnnDataType type = CudnnDataType::kFloat;

  double At(int64_t i) const {
    if (type == CudnnDataType::kBfloat16) return static_cast<const cuda::Bf16*>(data)[i];
    return static_cast<const float*>(data)[i];
  }
  void Set(int64_t i, double value) const {
    auto* const to = const_cast<void*>(data);
    const auto rounded = static_cast<float>(value);
    if (type == CudnnDataType::kBfloat16) {
      static_cast<cuda::Bf16*>(to)[i] = cuda::Bf16(rounded);
    } else {
      static_cast<float*>(to)[i] = rounded;
    }
  }
};

// A convolution. `kind` says which tensor is computed.
struct Convolution {
  Kind kind;
  std::vector<int64_t> sizes, weight_sizes, output_sizes;  // NCHW
  int64_t stride = 1, padding = 0;
  std::vector<int64_t> ids, alignments;  // of the input, the weights and the output
  // The data are set for an execution.
  Tensor input, weights, output;
  bool rounds = false;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;

  void Compute() const {
    if (workspace_bytes > 0) {
      std::memset(workspace, 0xcd, static_cast<size_t>(workspace_bytes));
    }
    const int64_t samples = sizes[0], channels = sizes[1], height = sizes[2], width = sizes[3];
    const int64_t outputs = weight_sizes[0], rows = weight_sizes[2], columns = weight_sizes[3];
    const int64_t output_height = output_sizes[2], output_width = output_sizes[3];
    const auto doubles = [this](const Tensor& tensor, int64_t count, bool is_result) {
      std::vector<double> copy(static_cast<size_t>(count));
      if (is_result) return copy;
      for (int64_t i = 0; i < count; ++i) {
        const double value = tensor.At(i);
        copy[i] = rounds ? RoundToTf32(static_cast<float>(value)) : value;
      }
      return copy;
    };
    std::vector<double> x =
        doubles(input, samples * height * width * channels, kind == Kind::kBackwardData);
    std::vector<double> w =
        doubles(weights, outputs * rows * columns * channels, kind == Kind::kBackwardFilter);
    std::vector<double> y =
        doubles(output, samples * output_height * output_width * outputs, kind == Kind::kForward);
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t position = 0; position < output_height * output_width; ++position) {
        double* of_y = &y[(n * output_height * output_width + position) * outputs];
        for (int64_t tap = 0; tap < rows * columns; ++tap) {
          const int64_t h = position / output_width * stride - padding + tap / columns;
          const int64_t v = position % output_width * stride - padding + tap % columns;
          if (h < 0 || h >= height || v < 0 || v >= width) continue;
          double* of_x = &x[((n * height + h) * width + v) * channels];
          for (int64_t k = 0; k < outputs; ++k) {
            double* of_w = &w[(k * rows * columns + tap) * channels];
            switch (kind) {
              case Kind::kForward: {
                double sum = 0;
                for (int64_t c = 0; c < channels; ++c) sum += of_x[c] * of_w[c];
                of_y[k] += sum;
                break;
              }
              case Kind::kBackwardData:
                for (int64_t c = 0; c < channels; ++c) of_x[c] += of_y[k] * of_w[c];
                break;
              default:
                for (int64_t c = 0; c < channels; ++c) of_w[c] += of_y[k] * of_x[c];
            }
          }
        }
      }
    }
    const auto store = [](const std::vector<double>& values, const Tensor& to) {
      for (size_t i = 0; i < values.size(); ++i) to.Set(static_cast<int64_t>(i), values[i]);
    };
    if (kind == Kind::kForward) store(y, output);
    if (kind == Kind::kBackwardData) store(x, input);
    if (kind == Kind::kBackwardFilter) store(w, weights);
  }
};

// The values of an attribute.
struct Values {
  int64_t count = 0;
  std::vector<unsigned char> bytes;
};

struct Descriptor {
  Kind kind;
  bool is_final = false;
  std::map<Attribute, Values> values;
  int engine = -1;               // of engines, configurations and plans
  Convolution convolution = {};  // of configurations and plans

  bool Has(Attribute name) const { return values.count(name) > 0; }
  template <typename Value>
  std::vector<Value> All(Attribute name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<Value> all(static_cast<size_t>(found->second.count));
    std::memcpy(all.data(), found->second.bytes.data(), found->second.bytes.size());
    return all;
  }
  template <typename Value>
  Value One(Attribute name) const {
    return All<Value>(name).at(0);
  }
  const Descriptor& Of(Attribute name) const { return *static_cast<Descriptor*>(One<void*>(name)); }
};

// What an attribute must be.
struct Rule {
  Kind kind;
  Attribute name;
  Type type;
  int64_t count;
};

const std::vector<Rule>& Rules() {
  static const auto& rules = *new std::vector<Rule>([] {
    std::vector<Rule> all = {
        {Kind::kConvolution, Attribute::kConvolutionComputeType, Type::kDataType, 1},
        {Kind::kConvolution, Attribute::kConvolutionMode, Type::kConvolutionMode, 1},
        {Kind::kConvolution, Attribute::kConvolutionDilations, Type::kInt64, 2},
        {Kind::kConvolution, Attribute::kConvolutionStrides, Type::kInt64, 2},
        {Kind::kConvolution, Attribute::kConvolutionPostPaddings, Type::kInt64, 2},
        {Kind::kConvolution, Attribute::kConvolutionPrePaddings, Type::kInt64, 2},
        {Kind::kConvolution, Attribute::kConvolutionDimensions, Type::kInt64, 1},
        {Kind::kEngineHeuristic, Attribute::kHeuristicMode, Type::kHeuristicMode, 1},
        {Kind::kEngineHeuristic, Attribute::kHeuristicGraph, Type::kDescriptor, 1},
        {Kind::kExecutionPlan, Attribute::kPlanHandle, Type::kHandle, 1},
        {Kind::kExecutionPlan, Attribute::kPlanConfiguration, Type::kDescriptor, 1},
        {Kind::kOperationGraph, Attribute::kGraphHandle, Type::kHandle, 1},
        {Kind::kOperationGraph, Attribute::kGraphOperations, Type::kDescriptor, 1},
        {Kind::kTensor, Attribute::kTensorAlignment, Type::kInt64, 1},
        {Kind::kTensor, Attribute::kTensorDataType, Type::kDataType, 1},
        {Kind::kTensor, Attribute::kTensorDimensions, Type::kInt64, 4},
        {Kind::kTensor, Attribute::kTensorStrides, Type::kInt64, 4},
        {Kind::kTensor, Attribute::kTensorId, Type::kInt64, 1},
        {Kind::kVariantPack, Attribute::kPackIds, Type::kInt64, 3},
        {Kind::kVariantPack, Attribute::kPackPointers, Type::kPointer, 3},
        {Kind::kVariantPack, Attribute::kPackWorkspace, Type::kPointer, 1},
    };
    // Six attributes in the same order for each direction.
    const std::pair<Kind, int> directions[] = {
        {Kind::kForward, 700}, {Kind::kBackwardData, 706}, {Kind::kBackwardFilter, 712}};
    for (const auto& [kind, first] : directions) {
      for (int i = 0; i < 6; ++i) {
        all.push_back(
            {kind, static_cast<Attribute>(first + i), i < 2 ? Type::kFloat : Type::kDescriptor, 1});
      }
    }
    return all;
  }());
  return rules;
}

int64_t SizeOf(Type type) {
  switch (type) {
    case Type::kInt64:
    case Type::kHandle:
    case Type::kPointer:
    case Type::kDescriptor:
      return 8;
    case Type::kChar:
      return 1;
    default:
      return 4;
  }
}

// What an operation's attributes are, relative to the first.
constexpr int kAlpha = 0, kBeta = 1, kConvolution = 2, kWeights = 3, kInput = 4, kOutput = 5;

Attribute NameOf(Kind kind, int what) {
  const int first = kind == Kind::kForward ? 700 : kind == Kind::kBackwardData ? 706 : 712;
  return static_cast<Attribute>(first + what);
}

CudnnStatus Refuse(const char* reason) {
  Library::Get().error = reason;
  return CudnnStatus::kBadParam;
}

// The checks of finalization, beyond the rules. Returns null, or what is wrong.
const char* WrongWith(const Descriptor& one) {
  switch (one.kind) {
    case Kind::kTensor: {
      const auto sizes = one.All<int64_t>(Attribute::kTensorDimensions);
      const auto strides = one.All<int64_t>(Attribute::kTensorStrides);
      if (*std::min_element(sizes.begin(), sizes.end()) < 1) return "a dimension is below 1";
      const int64_t channels = sizes[1], height = sizes[2], width = sizes[3];
      const std::vector<int64_t> nhwc = {height * width * channels, 1, width * channels, channels};
      if (strides != nhwc) return "the strides are not those of NHWC";
      if (!std::has_single_bit(
              static_cast<uint64_t>(one.One<int64_t>(Attribute::kTensorAlignment)))) {
        return "the alignment is not a power of two";
      }
      return nullptr;
    }
    case Kind::kConvolution:
      if (one.One<CudnnDataType>(Attribute::kConvolutionComputeType) != CudnnDataType::kFloat ||
          one.One<CudnnConvolutionMode>(Attribute::kConvolutionMode) !=
              CudnnConvolutionMode::kCrossCorrelation ||
          one.One<int64_t>(Attribute::kConvolutionDimensions) != 2) {
        return "not a two-dimensional cross-correlation in float";
      }
      return nullptr;
    case Kind::kForward:
    case Kind::kBackwardData:
    case Kind::kBackwardFilter: {
      if (one.One<float>(NameOf(one.kind, kAlpha)) != 1 ||
          one.One<float>(NameOf(one.kind, kBeta)) != 0) {
        return "alpha or beta is unusual";
      }
      const Descriptor& convolution = one.Of(NameOf(one.kind, kConvolution));
      const auto sizes = [&one](int what) {
        return one.Of(NameOf(one.kind, what)).All<int64_t>(Attribute::kTensorDimensions);
      };
      const auto input = sizes(kInput), weights = sizes(kWeights), output = sizes(kOutput);
      if (input[0] != output[0] || input[1] != weights[1] || weights[0] != output[1]) {
        return "the tensors do not match";
      }
      const auto type = [&one](int what) {
        return one.Of(NameOf(one.kind, what)).One<CudnnDataType>(Attribute::kTensorDataType);
      };
      // The real library has no engines for it.
      if (type(kWeights) != type(kInput) || type(kOutput) != type(kInput)) {
        return "the tensors have different types";
      }
      for (size_t i = 0; i < 2; ++i) {
        const auto number = [&](Attribute name) { return convolution.All<int64_t>(name)[i]; };
        const int64_t padded = input[2 + i] + number(Attribute::kConvolutionPrePaddings) +
                               number(Attribute::kConvolutionPostPaddings);
        const int64_t extent = (weights[2 + i] - 1) * number(Attribute::kConvolutionDilations) + 1;
        if (output[2 + i] != (padded - extent) / number(Attribute::kConvolutionStrides) + 1) {
          return "the output has another size";
        }
      }
      return nullptr;
    }
    case Kind::kVariantPack: {
      const auto ids = one.All<int64_t>(Attribute::kPackIds);
      if (std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size()) return "ids repeat";
      return nullptr;
    }
    default:
      return nullptr;
  }
}

// --- The functions of the library ---

size_t GetVersion() { return 90999; }

const char* Describe(CudnnStatus status) {
  switch (status) {
    case CudnnStatus::kSuccess:
      return "CUDNN_STATUS_SUCCESS";
    case CudnnStatus::kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CudnnStatus::kDeviceAllocationFailed:
      return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    case CudnnStatus::kExecutionFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_BAD_PARAM";
  }
}

void GetLastError(char* message, size_t size) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  std::snprintf(message, size, "%s", library.error.c_str());
  library.error.clear();
}

CudnnStatus Create(CudnnHandle* handle) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (!library.options.can_be_created) return CudnnStatus::kNotSupported;
  *handle = new CudnnContext();
  library.objects.insert(*handle);
  return CudnnStatus::kSuccess;
}

CudnnStatus Destroy(CudnnHandle handle) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (library.objects.erase(handle) == 0) return Refuse("there is no such handle");
  delete handle;
  return CudnnStatus::kSuccess;
}

CudnnStatus SetStream(CudnnHandle handle, void* stream) {
  handle->stream = static_cast<cudaStream_t>(stream);
  return CudnnStatus::kSuccess;
}

CudnnStatus CreateDescriptor(Kind kind, CudnnDescriptor* descriptor) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (kind == Kind::kDeviceProperties) return CudnnStatus::kNotSupported;
  *descriptor = new Descriptor{kind};
  library.objects.insert(*descriptor);
  return CudnnStatus::kSuccess;
}

CudnnStatus DestroyDescriptor(CudnnDescriptor descriptor) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (library.objects.erase(descriptor) == 0) return Refuse("there is no such descriptor");
  delete static_cast<Descriptor*>(descriptor);
  return CudnnStatus::kSuccess;
}

CudnnStatus SetAttribute(CudnnDescriptor descriptor, Attribute name, Type type, int64_t count,
                         const void* values) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (library.objects.count(descriptor) == 0) return Refuse("there is no such descriptor");
  auto& one = *static_cast<Descriptor*>(descriptor);
  if (one.is_final) return Refuse("an attribute is set after finalization");
  const auto rule = std::find_if(Rules().begin(), Rules().end(), [&](const Rule& rule) {
    return rule.kind == one.kind && rule.name == name;
  });
  if (rule == Rules().end()) return Refuse("the descriptor has no such attribute");
  if (rule->type != type || rule->count != count || values == nullptr) {
    return Refuse("the attribute has another type or another count");
  }
  const auto* begin = static_cast<const unsigned char*>(values);
  if (type == Type::kDescriptor) {
    const auto* other = *static_cast<const Descriptor* const*>(values);
    if (library.objects.count(other) == 0 || !other->is_final) {
      return Refuse("an attribute is a descriptor that is not final");
    }
  }
  one.values[name] = {count, {begin, begin + count * SizeOf(type)}};
  return CudnnStatus::kSuccess;
}

CudnnStatus Finalize(CudnnDescriptor descriptor) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (library.objects.count(descriptor) == 0) return Refuse("there is no such descriptor");
  auto& one = *static_cast<Descriptor*>(descriptor);
  if (one.is_final) return Refuse("it is final already");
  for (const Rule& rule : Rules()) {
    if (rule.kind == one.kind && !one.Has(rule.name)) return Refuse("an attribute is missing");
  }
  if (const char* wrong = WrongWith(one)) return Refuse(wrong);
  if (one.kind == Kind::kExecutionPlan) {
    if (IsExhausted(Call::kCudnn)) return CudnnStatus::kDeviceAllocationFailed;
    one.engine = one.Of(Attribute::kPlanConfiguration).engine;
    one.convolution = one.Of(Attribute::kPlanConfiguration).convolution;
    if (!library.engines()[one.engine].has_plans) {
      library.error = "this engine has no plan";
      return CudnnStatus::kNotSupported;
    }
  }
  one.is_final = true;
  return CudnnStatus::kSuccess;
}

Convolution ConvolutionOf(const Descriptor& graph) {
  const Descriptor& operation = graph.Of(Attribute::kGraphOperations);
  const auto numbers = [&operation](int what, Attribute name) {
    return operation.Of(NameOf(operation.kind, what)).All<int64_t>(name);
  };
  Convolution made;
  made.kind = operation.kind;
  made.sizes = numbers(kInput, Attribute::kTensorDimensions);
  made.weight_sizes = numbers(kWeights, Attribute::kTensorDimensions);
  made.output_sizes = numbers(kOutput, Attribute::kTensorDimensions);
  made.stride = numbers(kConvolution, Attribute::kConvolutionStrides)[0];
  made.padding = numbers(kConvolution, Attribute::kConvolutionPrePaddings)[0];
  for (const int what : {kInput, kWeights, kOutput}) {
    made.ids.push_back(numbers(what, Attribute::kTensorId)[0]);
    made.alignments.push_back(numbers(what, Attribute::kTensorAlignment)[0]);
  }
  const auto type = [&operation](int what) {
    const Descriptor& tensor = operation.Of(NameOf(operation.kind, what));
    return tensor.One<CudnnDataType>(Attribute::kTensorDataType);
  };
  made.input.type = type(kInput);
  made.weights.type = type(kWeights);
  made.output.type = type(kOutput);
  return made;
}

// The engines that a heuristic proposes.
std::pair<size_t, size_t> ProposalsOf(const Descriptor& heuristic) {
  const auto mode = heuristic.One<CudnnHeuristicMode>(Attribute::kHeuristicMode);
  if (mode == CudnnHeuristicMode::kA) return {0, kFirstFallback};
  return {kFirstFallback, Library::Get().engines().size()};
}

CudnnStatus GetAttribute(CudnnDescriptor descriptor, Attribute name, Type type, int64_t room,
                         int64_t* count, void* values) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (library.objects.count(descriptor) == 0) return Refuse("there is no such descriptor");
  const auto& one = *static_cast<Descriptor*>(descriptor);
  if (!one.is_final) return Refuse("an attribute is read before finalization");
  // Proposals are written to descriptors that the caller has made.
  const auto fill = [&](Kind kind, size_t index, size_t engine, const Convolution& convolution) {
    auto* filled = static_cast<Descriptor**>(values)[index];
    if (library.objects.count(filled) == 0 || filled->kind != kind || filled->is_final) {
      return false;
    }
    filled->engine = static_cast<int>(engine);
    filled->convolution = convolution;
    filled->is_final = true;
    return true;
  };
  if (one.kind == Kind::kEngineHeuristic && name == Attribute::kHeuristicResults &&
      type == Type::kDescriptor) {
    const auto [begin, end] = ProposalsOf(one);
    *count = static_cast<int64_t>(end - begin);
    if (room == 0) return CudnnStatus::kSuccess;
    *count = std::min(*count, room);
    const Convolution convolution = ConvolutionOf(one.Of(Attribute::kHeuristicGraph));
    for (size_t i = 0; i < static_cast<size_t>(*count); ++i) {
      if (!fill(Kind::kEngineConfiguration, i, begin + i, convolution)) {
        return Refuse("there is no descriptor for a proposal");
      }
    }
    return CudnnStatus::kSuccess;
  }
  if (one.kind == Kind::kEngineConfiguration && name == Attribute::kConfigurationEngine &&
      type == Type::kDescriptor && room == 1) {
    *count = 1;
    const bool is_filled = fill(Kind::kEngine, 0, static_cast<size_t>(one.engine), one.convolution);
    return is_filled ? CudnnStatus::kSuccess : Refuse("there is no descriptor for the engine");
  }
  if (one.kind == Kind::kEngine && name == Attribute::kEngineNumericalNotes &&
      type == Type::kNumericalNote) {
    const std::vector<CudnnNote> notes = library.engines()[one.engine].notes;
    *count = static_cast<int64_t>(notes.size());
    std::copy_n(notes.begin(), std::min(*count, room), static_cast<CudnnNote*>(values));
    return CudnnStatus::kSuccess;
  }
  if (one.kind == Kind::kExecutionPlan && name == Attribute::kPlanWorkspaceSize &&
      type == Type::kInt64 && room == 1) {
    *count = 1;
    *static_cast<int64_t*>(values) = library.engines()[one.engine].workspace_bytes;
    return CudnnStatus::kSuccess;
  }
  return Refuse("there is no such attribute to read");
}

CudnnStatus Execute(CudnnHandle handle, CudnnDescriptor plan_descriptor, CudnnDescriptor pack) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  for (const void* object : {static_cast<void*>(handle), plan_descriptor, pack}) {
    if (library.objects.count(object) == 0) return Refuse("there is no such object");
  }
  const auto& plan = *static_cast<Descriptor*>(plan_descriptor);
  const auto& given = *static_cast<Descriptor*>(pack);
  if (plan.kind != Kind::kExecutionPlan || given.kind != Kind::kVariantPack || !plan.is_final ||
      !given.is_final || plan.One<CudnnHandle>(Attribute::kPlanHandle) != handle) {
    return Refuse("the plan and the pack are not final, or of another handle");
  }
  if (IsExhausted(Call::kCudnn)) return CudnnStatus::kDeviceAllocationFailed;
  if (!library.options.executes) return CudnnStatus::kExecutionFailed;
  Convolution convolution = plan.convolution;
  const auto ids = given.All<int64_t>(Attribute::kPackIds);
  const auto pointers = given.All<void*>(Attribute::kPackPointers);
  std::vector<const void*> tensors;
  for (size_t i = 0; i < convolution.ids.size(); ++i) {
    const auto found = std::find(ids.begin(), ids.end(), convolution.ids[i]);
    if (found == ids.end()) return Refuse("a tensor is missing");
    tensors.push_back(pointers[found - ids.begin()]);
    if (tensors[i] == nullptr || reinterpret_cast<uintptr_t>(tensors[i]) %
                                         static_cast<uintptr_t>(convolution.alignments[i]) !=
                                     0) {
      return Refuse("a tensor is not aligned");
    }
  }
  const Engine engine = library.engines()[plan.engine];
  convolution.input.data = tensors[0];
  convolution.weights.data = tensors[1];
  convolution.output.data = tensors[2];
  convolution.rounds = plan.engine == kTensorCoreEngine;
  convolution.workspace = given.One<void*>(Attribute::kPackWorkspace);
  convolution.workspace_bytes = engine.workspace_bytes;
  if (convolution.workspace == nullptr && engine.workspace_bytes > 0) {
    return Refuse("there is no workspace");
  }
  // What it reads and writes is not counted.
  if (Queue(handle->stream, {"cudnnBackendExecute"}, [convolution] { convolution.Compute(); }) !=
      cudaSuccess) {
    return CudnnStatus::kExecutionFailed;
  }
  library.executed.push_back(plan.engine);
  return CudnnStatus::kSuccess;
}

}  // namespace

void ConfigureCudnn(const CudnnOptions& options) {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  library.options = options;
  library.executed.clear();
}

std::vector<int> TakeExecutedEngines() {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  return std::exchange(library.executed, {});
}

int64_t CountCudnnObjects() {
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  return static_cast<int64_t>(library.objects.size());
}

}  // namespace syncgrads::emulation

namespace syncgrads::cuda {

absl::StatusOr<const Cudnn*> LoadCudnn() {
  using namespace emulation;  // NOLINT(google-build-using-namespace)
  Library& library = Library::Get();
  const Lock lock(library.mutex);
  if (!library.options.is_installed) {
    return absl::UnimplementedError("cannot load libcudnn.so.9 (it is not installed)");
  }
  static constexpr Cudnn kCudnn = {GetVersion,   Describe,     GetLastError,     Create,
                                   Destroy,      SetStream,    CreateDescriptor, DestroyDescriptor,
                                   SetAttribute, GetAttribute, Finalize,         Execute};
  return &kCudnn;
}

}  // namespace syncgrads::cuda
