// Faults that are planted in the operations of a training step: each of them must change the
// results, or end the program. So the comparisons with the processor would find such a fault in the
// code. With bf16 activations, the results are compared with those of the device without a fault.
// Runs on the emulated device.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/cuda/cuda_device.h"
#include "worker/nn/models/build.h"
#include "worker/nn/models/model_input.h"
#include "worker/nn/pixels.h"

namespace syncgrads {
namespace {

using emulation::Fault;
using emulation::Schedule;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int kSteps = 2;
constexpr int kSamples = 2;
// The numbers in the im2col rows of one sample.
constexpr int64_t kRowNumbers = 1250;

// Convolutions in slices, batch norm with and without an addition, both
// kinds of pooling, and a dense layer.
v1::ModelSpec SmallModel() {
  v1::ModelSpec spec;
  const auto add_convolution = [](v1::LayerSpec& layer) {
    v1::Conv2dSpec& convolution = *layer.mutable_conv2d();
    convolution.set_outputs(8);
    convolution.set_kernel_size(3);
    convolution.set_padding(1);
    convolution.set_no_bias(true);
  };
  add_convolution(*spec.add_layers());
  spec.add_layers()->mutable_batch_norm()->set_activation(v1::RELU);
  v1::PoolSpec& pool = *spec.add_layers()->mutable_max_pool();
  pool.set_kernel_size(2);
  pool.set_stride(2);
  v1::ResidualSpec& residual = *spec.add_layers()->mutable_residual();
  residual.set_activation(v1::RELU);
  add_convolution(*residual.add_body());
  residual.add_body()->mutable_batch_norm();
  spec.add_layers()->mutable_global_average_pool();
  spec.add_layers()->mutable_dense()->set_outputs(10);
  return spec;
}

// Numbers that are compared with each other: those of one array of one step.
struct Result {
  std::string name;
  std::vector<float> numbers;
};

// Images of both kinds.
class Images {
 public:
  Images() {
    RandomStream random(0, {});
    const auto draw = [&random] { return static_cast<float>(2 * random.NextUniform() - 1); };
    for (Eigen::Index i = 0; i < images_.size(); ++i) images_.data()[i] = draw();
    for (unsigned char& pixel : pixels_) {
      pixel = static_cast<unsigned char>(random.NextBelow(kPixelValues));
    }
    // The last pixels of all, and of the table.
    pixels_.back() = kPixelValues - 1;
    for (float& number : of_pixels_) number = draw();
  }

  ModelInput<float> numbers() const { return images_; }
  ModelInput<float> pixels() const {
    return Pixels<float>{kSamples, kSize, 3, pixels_.data(), of_pixels_.data()};
  }

 private:
  static constexpr int64_t kSize = 3 * 8 * 8;
  Matrix<float> images_ = Matrix<float>(kSamples, kSize);
  std::vector<unsigned char> pixels_ = std::vector<unsigned char>(kSamples * kSize);
  std::vector<float> of_pixels_ = std::vector<float>(3 * kPixelValues);
};

// Trains a model as the trainer does.
class Training {
 public:
  explicit Training(Device<float>& device)
      : device_(device),
        model_(*BuildModel<float>(SmallModel(), Shape::Image(3, 8, 8), NoCustomLayers(), device)) {
    model_->Initialise(3);
    RandomStream random(4, {});
    for (Parameter<float>* parameter : model_->parameters()) {
      // Biases are not zero either.
      for (Eigen::Index i = 0; i < parameter->values.size(); ++i) {
        parameter->values.data()[i] += static_cast<float>(0.2 * random.NextUniform());
      }
      slots_.emplace_back(device.memory(), 1, parameter->values.size());
      device.memory().SetZero(slots_.back().data(), slots_.back().bytes());
    }
    loss_.l2 = 0.01;
  }

  // In the even steps the host updates the parameters, in the others the device does. The images of
  // the second step are pixels of 8 bits, which are uploaded while the device computes the first.
  absl::StatusOr<std::vector<Result>> Run() {
    SYNCGRADS_RETURN_IF_ERROR(model_->Upload());
    for (int step = 0; step < kSteps; ++step) {
      SYNCGRADS_RETURN_IF_ERROR(ComputeGradients(step));
      const auto update = step % 2 == 0 ? &Training::UpdateOnHost : &Training::UpdateOnDevice;
      SYNCGRADS_RETURN_IF_ERROR((this->*update)());
      if (step + 1 < kSteps) model_->BringAhead(images_.pixels());
      SYNCGRADS_ASSIGN_OR_RETURN(const double loss, model_->TakeLoss());
      results_.push_back({absl::StrCat("loss of step ", step), {static_cast<float>(loss)}});
    }
    SYNCGRADS_RETURN_IF_ERROR(model_->FetchStates());
    for (const Parameter<float>* parameter : model_->parameters()) Take(*parameter);
    for (const Parameter<float>* state : model_->states()) Take(*state);
    return std::move(results_);
  }

 private:
  void Take(const Parameter<float>& array) {
    results_.push_back({array.name, Numbers(array.values)});
  }
  static std::vector<float> Numbers(const HostMatrix<float>& matrix) {
    return {matrix.data(), matrix.data() + matrix.size()};
  }

  absl::Status ComputeGradients(int step) {
    Pass pass;
    pass.training = true;
    std::vector<double> targets;
    for (int i = 0; i < kSamples; ++i) targets.push_back((2 * i + step) % 10);
    downloads_.assign(model_->parameters().size(), {});
    const auto needed = [&](size_t i) {
      if (is_newer_on_host_) model_->parameters()[i]->Upload();
      return absl::OkStatus();
    };
    const auto ready = [&](size_t i) {
      model_->Penalise(loss_, i);
      downloads_[i] = model_->parameters()[i]->QueueGradient();
      return absl::OkStatus();
    };
    SYNCGRADS_RETURN_IF_ERROR(
        model_->ComputeGradients(pass, step == 0 ? images_.numbers() : images_.pixels(), loss_,
                                 targets, kSamples, needed, ready));
    is_newer_on_host_ = false;
    return absl::OkStatus();
  }

  absl::Status TakeGradients() {
    for (size_t i = downloads_.size(); i-- > 0;) {
      SYNCGRADS_RETURN_IF_ERROR(device_.memory().Wait(downloads_[i]));
      const Parameter<float>& parameter = *model_->parameters()[i];
      results_.push_back(
          {absl::StrCat("gradient of ", parameter.name), Numbers(parameter.gradient)});
    }
    return absl::OkStatus();
  }

  absl::Status UpdateOnHost() {
    SYNCGRADS_RETURN_IF_ERROR(TakeGradients());
    for (Parameter<float>* parameter : model_->parameters()) {
      parameter->values -= 0.1f * parameter->gradient;
    }
    is_newer_on_host_ = true;
    return absl::OkStatus();
  }

  absl::Status UpdateOnDevice() {
    ++updates_;
    std::vector<ArrayUpdate<float>> updates;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Parameter<float>& parameter = *model_->parameters()[i];
      updates.push_back({updates_, parameter.values.size(), parameter.device_gradient(),
                         parameter.device_values()});
      updates[i].slots[0] = slots_[i].data();
    }
    device_.Update(Momentum{}, updates);
    DeviceMemory::Download last = {};
    for (Parameter<float>* parameter : model_->parameters()) last = parameter->QueueValues();
    SYNCGRADS_RETURN_IF_ERROR(TakeGradients());
    return device_.memory().Wait(last);
  }

  Device<float>& device_;
  const Images images_;
  const std::unique_ptr<Model<float>> model_;
  Loss loss_;
  std::vector<DeviceArray<float>> slots_;  // of the parameters
  std::vector<DeviceMemory::Download> downloads_;
  bool is_newer_on_host_ = false;
  uint64_t updates_ = 0;
  std::vector<Result> results_;
};

std::vector<Result> ResultsOfProcessor() {
  CpuDevice<float> processor(1);
  return *Training(processor).Run();
}

// Returns the difference of two runs, as text; empty if they agree within `error`, relative to the
// largest number of each array.
std::string Difference(const std::vector<Result>& expected, const std::vector<Result>& actual,
                       float error) {
  for (size_t r = 0; r < expected.size(); ++r) {
    float scale = 0;
    for (const float number : expected[r].numbers) scale = std::max(scale, std::abs(number));
    for (size_t i = 0; i < expected[r].numbers.size(); ++i) {
      // Also if the difference is not a number.
      if (!(std::abs(actual[r].numbers[i] - expected[r].numbers[i]) <= error * scale)) {
        return absl::StrCat(expected[r].name, "[", i, "] is ", actual[r].numbers[i], ", not ",
                            expected[r].numbers[i]);
      }
    }
  }
  return "";
}

emulation::Options WithSchedule(Schedule schedule, uint64_t seed, bool backwards) {
  emulation::Options options;
  options.device_bytes = size_t{64} << 20;
  options.schedule = schedule;
  options.seed = seed;
  options.backwards = backwards;
  return options;
}

std::vector<emulation::Options> Schedules() {
  return {WithSchedule(Schedule::kOldestStreamFirst, 1, false),
          WithSchedule(Schedule::kNewestStreamFirst, 1, true),
          WithSchedule(Schedule::kRandom, 2, false), WithSchedule(Schedule::kRandom, 3, true)};
}

// Trains on a device that stores activations as S.
template <typename S>
absl::StatusOr<std::vector<Result>> TrainOnDevice(const emulation::Options& options) {
  emulation::Configure(options);
  using Device = cuda::CudaDevice<float, S>;
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::unique_ptr<Device> device,
      Device::Create(0, {.row_bytes = kRowNumbers * sizeof(S), .cudnn = false}));
  return Training(*device).Run();
}

// What the results must be, and how the device computes them.
struct Expected {
  std::vector<Result> results;
  float error;
  absl::StatusOr<std::vector<Result>> (*train)(const emulation::Options&);
};

// Trains on the device. Returns the difference from `expected`; empty if there is none.
std::string DifferenceOnDevice(const emulation::Options& options, const Expected& expected) {
  const auto actual = expected.train(options);
  if (!actual.ok()) return actual.status().ToString();
  return Difference(expected.results, *actual, expected.error);
}

// Whether training in a process of its own differs from `expected` or crashes.
bool IsFound(const emulation::Options& options, const Expected& expected) {
  const pid_t child = fork();
  if (child == 0) {
    // Faults that crash print why.
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    alarm(60);
    _exit(DifferenceOnDevice(options, expected).empty() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

class PlantedFaultsTest : public testing::Test {
 protected:
  PlantedFaultsTest() : PlantedFaultsTest({ResultsOfProcessor(), 1e-3f, TrainOnDevice<float>}) {}
  explicit PlantedFaultsTest(Expected expected) : expected_(std::move(expected)) {}

  // Returns the names of the operations that can have this fault.
  std::vector<std::string> Places(Fault fault) {
    emulation::Options options = schedules_.front();
    options.fault = fault;
    EXPECT_EQ(DifferenceOnDevice(options, expected_), "");
    std::vector<std::string> places = emulation::FaultPlaces();
    EXPECT_GE(places.size(), 20u);
    emulation::Configure({});
    return places;
  }

  bool IsFoundAt(Fault fault, size_t place, emulation::Options options) {
    options.fault = fault;
    options.correct = place;
    return IsFound(options, expected_);
  }

  // Returns the names of the operations in which the fault is not found. Each schedule has some of
  // the faults, because the results do not depend on the schedule.
  std::vector<std::string> NotFound(Fault fault) {
    const std::vector<std::string> places = Places(fault);
    std::vector<std::string> names;
    for (size_t i = 0; i < places.size(); ++i) {
      if (!IsFoundAt(fault, i, schedules_[i % schedules_.size()])) names.push_back(places[i]);
    }
    return names;
  }

  const Expected expected_;
  const std::vector<emulation::Options> schedules_ = Schedules();
};

TEST_F(PlantedFaultsTest, WithoutAFaultEachScheduleAgreesWithTheProcessor) {
  for (const emulation::Options& options : Schedules()) {
    EXPECT_EQ(DifferenceOnDevice(options, expected_), "");
    EXPECT_FALSE(IsFound(options, expected_));
  }
}

// Memory that is overwritten before it is read: the model's initial values, which Upload replaces,
// and the sum of losses after the last step.
TEST_F(PlantedFaultsTest, CopiesFromAWrongOffsetAreFound) {
  EXPECT_THAT(NotFound(Fault::kShiftCopy),
              ElementsAre("memset", "memset", "upload", "upload", "memset"));
}

TEST_F(PlantedFaultsTest, BlocksAtAWrongOffsetAreFound) {
  EXPECT_THAT(NotFound(Fault::kShiftBlock), IsEmpty());
}

TEST_F(PlantedFaultsTest, LostBlocksAreFound) {
  EXPECT_THAT(NotFound(Fault::kLoseLastBlock), IsEmpty());
}

// Not found where the last number has no effect:
//   cublasGemmEx NN      the gradient of padding, in both slices of a convolution
//   cublasGemmEx NT      the gradient of the weight of the fourth channel, which is padding
//   SumPartly            the last of the partial sums, which is 0 for so few numbers
TEST_F(PlantedFaultsTest, LostTailsAreFound) {
  EXPECT_THAT(
      NotFound(Fault::kLoseTail),
      ElementsAre("cublasGemmEx NN", "cublasGemmEx NN", "cublasGemmEx NT", "cublasGemmEx NT",
                  "SumPartly TakeNumber", "SumPartly ReadNumber", "cublasGemmEx NN",
                  "cublasGemmEx NN", "cublasGemmEx NT", "cublasGemmEx NT", "SumPartly TakeNumber"));
}

// Copies and waits are the same as above, so only what kernels and products do is tried.
class Bf16PlantedFaultsTest : public PlantedFaultsTest {
 protected:
  Bf16PlantedFaultsTest()
      : PlantedFaultsTest(
            {*TrainOnDevice<cuda::Bf16>(Schedules().front()), 0, TrainOnDevice<cuda::Bf16>}) {}
};

TEST_F(Bf16PlantedFaultsTest, EachScheduleHasTheSameBits) {
  for (const emulation::Options& options : Schedules()) {
    EXPECT_EQ(DifferenceOnDevice(options, expected_), "");
  }
}

TEST_F(Bf16PlantedFaultsTest, BlocksAtAWrongOffsetAreFound) {
  EXPECT_THAT(NotFound(Fault::kShiftBlock), IsEmpty());
}

TEST_F(Bf16PlantedFaultsTest, LostBlocksAreFound) {
  EXPECT_THAT(NotFound(Fault::kLoseLastBlock), IsEmpty());
}

// Where the last number has no effect, the fault is not found, as without bf16.
TEST_F(Bf16PlantedFaultsTest, LostTailsAreFound) {
  EXPECT_THAT(NotFound(Fault::kLoseTail),
              ElementsAre("cublasGemmEx NN", "cublasGemmEx NN", "cublasGemmEx NT",
                          "cublasGemmEx NT", "SumPartly ReadNumber", "cublasGemmEx NN",
                          "cublasGemmEx NN", "cublasGemmEx NT", "cublasGemmEx NT"));
}

// A wait that no schedule needs is redundant: another wait, or the host, has the same effect.
TEST_F(PlantedFaultsTest, MissingWaitsAreFoundUnlessTheyAreRedundant) {
  const std::vector<std::string> places = Places(Fault::kDropWait);
  std::map<std::string, int> redundant;
  size_t found = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    bool is_found = false;
    for (const emulation::Options& options : schedules_) {
      is_found = is_found || IsFoundAt(Fault::kDropWait, i, options);
    }
    found += is_found ? 1 : 0;
    if (!is_found) ++redundant[places[i]];
  }
  EXPECT_EQ(found, 20u);
  EXPECT_THAT(
      redundant,
      UnorderedElementsAre(
          // Downloads in a row, from the same operation: only the first must wait. In the
          // last one nothing is new.
          Pair("download waits for CombineColumn", 3),
          Pair("download waits for MomentumStep Arrays", 7), Pair("download waits for Penalise", 1),
          Pair("download waits for memset", 1),
          // Uploads in a row: the wait for the last one is enough. Also, the memory of the
          // loss grows in the first step, and cudaFree waits for everything.
          Pair("PackWeights waits for upload", 5), Pair("SumPartly TakeNumber waits for upload", 2),
          Pair("VisitStrip StripMoments waits for upload", 2),
          Pair("cublasGemmEx NN waits for upload", 1), Pair("memset waits for upload", 2),
          // The host waits for the loss of each step, so what an upload overwrites is no
          // longer needed.
          Pair("upload waits for AveragePool", 2), Pair("upload waits for MaxPoolColumn", 1),
          Pair("upload waits for Penalise", 1), Pair("upload waits for StorePixelPacks", 2),
          Pair("upload waits for cublasGemmEx TN", 4), Pair("upload waits for memset", 6)));
}

}  // namespace
}  // namespace syncgrads
