// Updates of a model's parameters on the CPU and on an emulated CUDA device.

#include "worker/train/model_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/local_optimizer.h"
#include "common/optim/optimizer.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/cuda/cuda_device.h"
#include "worker/nn/parameter_arrays.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

// In arrays, the first three follow each other without a gap.
constexpr int64_t kSizes[] = {16, 32, 300, 7};
constexpr size_t kParameters = std::size(kSizes);

template <typename T>
std::unique_ptr<Device<T>> MakeCuda() {
  auto device = cuda::CudaDevice<T>::Create(0, {});
  EXPECT_TRUE(device.ok()) << device.status();
  return std::move(*device);
}

// Parameters on a device with their optimizer, and the parameters that LocalOptimizer computes from
// the same gradients.
template <typename T>
class Replica {
 public:
  // `in_arrays`: as a model has them; otherwise each has memory of its own.
  Replica(const Optimizer& rule, Device<T>& device, bool in_arrays = true)
      : memory_(device.memory()) {
    std::vector<TensorSpec> specs;
    for (const int64_t size : kSizes) {
      parameters_.push_back(Parameter<T>::Vector(device.memory(), absl::StrCat("p", size), size));
      specs.push_back(parameters_.back().spec());
    }
    for (Parameter<T>& parameter : parameters_) pointers_.push_back(&parameter);
    if (in_arrays) arrays_.emplace(memory_, pointers_);
    for (Parameter<T>& parameter : parameters_) {
      Draw(parameter.values);
      values_.emplace_back(parameter.values.data(),
                           parameter.values.data() + parameter.values.size());
      parameter.Upload();
    }
    optimizer_ = *ModelOptimizer<T>::Create(rule, device, pointers_);
    expected_.emplace(*LocalOptimizer::Create(rule, specs));
  }

  // Draws new gradients for the parameters in `numbers` and applies them.
  void Apply(const std::vector<size_t>& numbers, double rate_factor = 1) {
    SYNCGRADS_ASSERT_OK(memory_.Finish());
    for (const size_t i : numbers) Draw(pointers_[i]->gradient);
    ApplyAgain(numbers, rate_factor);
  }
  // Draws new gradients for the parameters in `numbers` and uploads them.
  void DrawAndUpload(const std::vector<size_t>& numbers) {
    SYNCGRADS_ASSERT_OK(memory_.Finish());
    for (const size_t i : numbers) {
      Draw(pointers_[i]->gradient);
      optimizer_->UploadGradient(i);
    }
  }
  // Applies the present gradients of the parameters in `numbers`, without waiting for the device.
  // `overwritten`: the host's gradients are overwritten before the optimizer is called.
  void ApplyAgain(const std::vector<size_t>& numbers, double rate_factor = 1,
                  bool overwritten = false) {
    optimizer_->SetRateFactor(rate_factor);
    expected_->SetRateFactor(rate_factor);
    for (const size_t i : numbers) {
      SYNCGRADS_ASSERT_OK(expected_->Apply(
          TensorId{static_cast<uint32_t>(i)},
          absl::MakeConstSpan(reinterpret_cast<std::byte*>(pointers_[i]->gradient.data()),
                              pointers_[i]->bytes()),
          absl::MakeSpan(reinterpret_cast<std::byte*>(values_[i].data()), pointers_[i]->bytes())));
    }
    for (const size_t i : numbers) {
      if (overwritten) pointers_[i]->gradient.setZero();
    }
    SYNCGRADS_ASSERT_OK(optimizer_->Apply(numbers));
  }

  // Draws new gradients for all parameters, in other memory of the host, because the device may
  // still copy from where they are.
  void RenewGradients() {
    int64_t elements = 0;
    for (const int64_t size : kSizes) elements += AlignedSize<T>(size);
    renewed_.emplace_back(memory_, 1, elements);
    T* at = renewed_.back().data();
    for (Parameter<T>& parameter : parameters_) {
      parameter.PlaceGradient(at);
      at += AlignedSize<T>(parameter.values.size());
      Draw(parameter.gradient);
    }
  }

  // Draws a new gradient for a parameter, in other pinned memory, and tells the optimizer that it
  // lies there, in pieces between these elements. It uploads the gradient if `uploads`.
  void SetGradient(size_t number, const std::vector<size_t>& cuts, bool uploads = false) {
    const auto elements = static_cast<int64_t>(cuts.back());
    HostMatrix<T>& gradient = elsewhere_.emplace_back(memory_, 1, elements);
    Draw(gradient);
    std::vector<absl::Span<const std::byte>> pieces;
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      pieces.push_back(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(gradient.data() + cuts[c]),
                              (cuts[c + 1] - cuts[c]) * sizeof(T)));
    }
    pointers_[number]->gradient.setZero();
    optimizer_->SetGradient(number, pieces);
    if (uploads) optimizer_->UploadGradient(number);
    SYNCGRADS_ASSERT_OK(
        expected_->Apply(TensorId{static_cast<uint32_t>(number)},
                         absl::MakeConstSpan(reinterpret_cast<const std::byte*>(gradient.data()),
                                             elements * sizeof(T)),
                         absl::MakeSpan(reinterpret_cast<std::byte*>(values_[number].data()),
                                        pointers_[number]->bytes())));
  }

  // Compares the values that the host has, without waiting for the device.
  void ExpectValues() { ExpectValues(values_); }
  void ExpectValues(const std::vector<std::vector<T>>& values) {
    for (size_t i = 0; i < kParameters; ++i) {
      EXPECT_EQ(std::memcmp(pointers_[i]->values.data(), values[i].data(), pointers_[i]->bytes()),
                0)
          << pointers_[i]->name;
    }
  }
  void ExpectState() {
    ExpectValues();
    for (size_t i = 0; i < kParameters; ++i) {
      const TensorId tensor{static_cast<uint32_t>(i)};
      EXPECT_EQ(optimizer_->updates(i), expected_->updates(tensor));
      ASSERT_EQ(optimizer_->slots(), expected_->slots());
      for (int s = 0; s < optimizer_->slots(); ++s) {
        EXPECT_EQ(std::memcmp(optimizer_->slot(i, s), expected_->slot(tensor, s).data(),
                              pointers_[i]->bytes()),
                  0)
            << pointers_[i]->name << ", slot " << s;
      }
    }
  }

  // Writes other slots on the host and uploads them to the device.
  void ReplaceSlots() {
    for (size_t i = 0; i < kParameters; ++i) {
      optimizer_->set_updates(i, 40);
      expected_->set_updates(TensorId{static_cast<uint32_t>(i)}, 40);
      for (int s = 0; s < optimizer_->slots(); ++s) {
        std::fill_n(optimizer_->slot(i, s), kSizes[i], T{0.25});
        std::memcpy(expected_->slot(TensorId{static_cast<uint32_t>(i)}, s).data(),
                    optimizer_->slot(i, s), pointers_[i]->bytes());
      }
    }
    optimizer_->UploadSlots();
  }

  const std::vector<std::vector<T>>& values() const { return values_; }
  ModelOptimizer<T>& optimizer() { return *optimizer_; }

 private:
  void Draw(HostMatrix<T>& matrix) {
    for (Eigen::Index i = 0; i < matrix.size(); ++i) {
      matrix.data()[i] = static_cast<T>(random_.NextUniform() - 0.5);
    }
  }

  DeviceMemory& memory_;
  RandomStream random_{11, {}};
  std::vector<HostMatrix<T>> renewed_, elsewhere_;
  std::vector<Parameter<T>> parameters_;
  std::vector<Parameter<T>*> pointers_;
  std::optional<ParameterArrays<T>> arrays_;
  std::vector<std::vector<T>> values_;
  std::unique_ptr<ModelOptimizer<T>> optimizer_;
  std::optional<LocalOptimizer> expected_;
};

// A gradient that was uploaded is the one that the next update uses, unless it is forgotten.
TEST(ModelOptimizerTest, GradientsCanBeUploadedBeforeTheirUpdate) {
  emulation::Configure({.schedule = Schedule::kNewestStreamFirst});
  const auto device = MakeCuda<float>();
  Replica<float> replica(Adam{}, *device);
  EXPECT_TRUE(replica.optimizer().uploads_gradients());
  replica.Apply({0, 1, 2, 3});
  // The second and the last parameter are uploaded ahead, and the others with the update.
  replica.DrawAndUpload({1, 3});
  replica.ApplyAgain({0, 1, 2, 3});
  SYNCGRADS_ASSERT_OK(device->memory().Finish());
  // Not uploaded again: the device has another gradient than the host.
  replica.DrawAndUpload({2});
  SYNCGRADS_ASSERT_OK(device->memory().Finish());
  replica.ApplyAgain({2}, 1, /*overwritten=*/true);
  SYNCGRADS_ASSERT_OK(device->memory().Finish());
  // Each upload is for one update.
  replica.Apply({0, 1, 2, 3});
  replica.DrawAndUpload({0});
  replica.optimizer().ForgetGradient(0);
  replica.Apply({0, 2});
  SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
  replica.ExpectState();
  CpuDevice<float> processor(1);
  EXPECT_FALSE(Replica<float>(Adam{}, processor).optimizer().uploads_gradients());
  EXPECT_FALSE(Replica<float>(Lamb{}, *device).optimizer().uploads_gradients());
}

const Optimizer kRules[] = {Sgd{.weight_decay = 0.1},
                            Momentum{},
                            Nesterov{},
                            RmsProp{},
                            Adagrad{},
                            Adam{},
                            AdamW{},
                            Lion{},
                            Lamb{},
                            Lars{}};

template <typename T>
void ExpectTheBitsOfTheHost(Device<T>& device, bool in_arrays = true) {
  for (const Optimizer& rule : kRules) {
    SCOPED_TRACE(ToString(rule));
    Replica<T> replica(rule, device, in_arrays);
    replica.Apply({0, 1, 2, 3});
    replica.Apply({1}, /*rate_factor=*/0.5);
    replica.Apply({0, 1, 2, 3});
    SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
    replica.ExpectState();
    replica.Apply({2, 0});
    SYNCGRADS_ASSERT_OK(replica.optimizer().FetchValues());
    replica.ExpectValues();
    SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
    replica.ExpectState();
    replica.ReplaceSlots();
    replica.Apply({0, 1, 2});
    SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
    replica.ExpectState();
    // Undo restores what Keep has copied, but not after ForgetKept.
    for (const size_t i : {0, 2}) EXPECT_TRUE(replica.optimizer().Keep(i));
    SYNCGRADS_ASSERT_OK(replica.optimizer().Apply({0, 2}));
    replica.optimizer().Undo();
    SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
    replica.ExpectState();
    EXPECT_TRUE(replica.optimizer().Keep(1));
    replica.optimizer().ForgetKept();
    replica.Apply({0, 1});
    replica.optimizer().Undo();
    SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
    replica.ExpectState();
  }
}

TEST(ModelOptimizerTest, OnTheProcessorItHasTheBitsOfTheHost) {
  CpuDevice<float> floats(2);
  ExpectTheBitsOfTheHost(floats);
  CpuDevice<double> doubles(1);
  ExpectTheBitsOfTheHost(doubles);
}

TEST(ModelOptimizerTest, AGradientInPiecesHasTheBitsOfTheSameGradientInOne) {
  CpuDevice<float> device(2);
  for (const Optimizer& rule : kRules) {
    Replica<float> replica(rule, device);
    EXPECT_EQ(replica.optimizer().takes_pieces(), !NeedsNorms(rule));
    if (NeedsNorms(rule)) continue;
    for (int step = 0; step < 3; ++step) {
      replica.SetGradient(2, {0, 100, 101, 300});
      SYNCGRADS_ASSERT_OK(replica.optimizer().Apply({2}));
    }
    replica.Apply({0, 2});
    replica.ExpectState();
  }
}

class CudaModelOptimizerTest : public testing::TestWithParam<Schedule> {
 protected:
  CudaModelOptimizerTest() {
    emulation::Options options;
    options.schedule = GetParam();
    emulation::Configure(options);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, CudaModelOptimizerTest,
                         testing::Values(Schedule::kRandom, Schedule::kOldestStreamFirst,
                                         Schedule::kNewestStreamFirst));

TEST_P(CudaModelOptimizerTest, ItHasTheBitsOfTheHost) {
  ExpectTheBitsOfTheHost(*MakeCuda<float>());
  ExpectTheBitsOfTheHost(*MakeCuda<double>());
  ExpectTheBitsOfTheHost(*MakeCuda<float>(), /*in_arrays=*/false);
}

TEST_P(CudaModelOptimizerTest, WhatIsBeingFetchedIsOfTheStepBefore) {
  const auto device = MakeCuda<float>();
  Replica<float> replica(Adam{}, *device);
  for (int step = 0; step < 10; ++step) {
    replica.Apply({0, 1, 2});
    replica.optimizer().BeginFetch();
    const std::vector<std::vector<float>> before = replica.values();
    replica.ApplyAgain({0, 1, 2});
    replica.ExpectValues(before);
  }
  SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
  replica.ExpectState();
}

TEST_P(CudaModelOptimizerTest, GradientsCanLieElsewhereOnTheHost) {
  const auto device = MakeCuda<float>();
  Replica<float> replica(Adam{}, *device);
  EXPECT_TRUE(replica.optimizer().takes_pieces());
  for (int step = 0; step < 10; ++step) {
    replica.SetGradient(0, {0, 16});
    replica.SetGradient(1, {0, 5, 32}, /*uploads=*/true);
    replica.SetGradient(2, {0, 100, 101, 300}, /*uploads=*/step % 2 == 0);
    EXPECT_EQ(replica.optimizer().is_uploaded(2), step % 2 == 0);
    SYNCGRADS_ASSERT_OK(replica.optimizer().Apply({0, 1, 2}));
  }
  // A gradient is for one update, unless it is taken back before.
  replica.Apply({0, 1, 2, 3});
  const HostMatrix<float> other(device->memory(), 1, 300);
  replica.optimizer().SetGradient(
      2, {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(other.data()), 1200)});
  replica.optimizer().ForgetGradient(2);
  replica.Apply({2});
  SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
  replica.ExpectState();
}

// As in steps without rows: nothing between the two updates waits for the device.
TEST_P(CudaModelOptimizerTest, AGradientIsNotOverwrittenBeforeTheUpdateHasReadIt) {
  const auto device = MakeCuda<float>();
  Replica<float> replica(Momentum{}, *device);
  for (int step = 0; step < 10; ++step) {
    replica.Apply({0, 1, 2, 3});
    replica.RenewGradients();
    replica.ApplyAgain({0, 1, 2, 3});
  }
  SYNCGRADS_ASSERT_OK(replica.optimizer().Fetch());
  replica.ExpectState();
}

TEST_P(CudaModelOptimizerTest, UntilItIsFetchedTheHostHasWhatItHad) {
  const auto device = MakeCuda<float>();
  Replica<float> replica(Momentum{}, *device);
  const std::vector<std::vector<float>> before = replica.values();
  replica.Apply({0, 1, 2});
  SYNCGRADS_ASSERT_OK(device->memory().Finish());
  replica.ExpectValues(before);
  SYNCGRADS_ASSERT_OK(replica.optimizer().FetchValues());
  replica.ExpectValues();
}

TEST(ModelOptimizerErrorTest, ADeviceWithoutRoomForTheSlotsIsAnErrorThatNamesTheSlot) {
  emulation::Options options;
  options.device_bytes = size_t{40} << 20;  // cuBLAS's workspace takes 32 MiB of them
  emulation::Configure(options);
  const auto device = MakeCuda<float>();
  Parameter<float> large = Parameter<float>::Vector(device->memory(), "large/kernel", 900000);
  Parameter<float>* const parameters[] = {&large};
  ExpectError(
      ModelOptimizer<float>::Create(Adam{}, *device, parameters).status(),
      absl::StatusCode::kResourceExhausted,
      {"the optimizer's m of 1 parameters", "cuda:0 has not enough free memory for 3600000 bytes"});
  // SGD has no slots, and LAMB keeps its slots on the host. So both fit.
  device->memory().ForgetExhaustion();
  SYNCGRADS_EXPECT_OK(ModelOptimizer<float>::Create(Sgd{}, *device, parameters));
  SYNCGRADS_EXPECT_OK(ModelOptimizer<float>::Create(Lamb{}, *device, parameters));
}

TEST(ModelOptimizerErrorTest, WhereThereIsNoRoomNothingIsKeptAndTheDeviceGoesOn) {
  emulation::Options options;
  options.device_bytes = size_t{40} << 20;
  emulation::Configure(options);
  const auto device = MakeCuda<float>();
  // The memory has room for the value, the gradient, and one of the two copies that Keep makes.
  Parameter<float> large = Parameter<float>::Vector(device->memory(), "large/kernel", 700000);
  Parameter<float>* const parameters[] = {&large};
  large.values.setConstant(1);
  large.gradient.setConstant(1);
  large.Upload();
  const auto optimizer =
      ModelOptimizer<float>::Create(Sgd{.learning_rate = 0.5}, *device, parameters);
  SYNCGRADS_ASSERT_OK(optimizer);
  EXPECT_FALSE((*optimizer)->Keep(0));
  SYNCGRADS_EXPECT_OK(device->memory().status());
  SYNCGRADS_ASSERT_OK((*optimizer)->Apply({0}));
  (*optimizer)->Undo();
  SYNCGRADS_ASSERT_OK((*optimizer)->Fetch());
  EXPECT_EQ(large.values.data()[699999], 0.5f);
}

TEST(ModelOptimizerErrorTest, ARuleOutOfItsRangeIsRefused) {
  CpuDevice<float> device(1);
  ExpectError(ModelOptimizer<float>::Create(Adam{.beta1 = 1}, device, {}).status(),
              absl::StatusCode::kInvalidArgument, {"beta1"});
}

}  // namespace
}  // namespace syncgrads
