// A worker whose device hangs ends, and its outcome says so, whatever else happens meanwhile.

#include "worker/base/hung_device.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/report/progress.h"
#include "worker/run/worker.h"
#include "worker/train/extensions.h"

namespace syncgrads {
namespace {

// The memory of a device that hangs in one of the first steps, in the wait with number `hang`. This
// wait calls `meanwhile` and then times out.
class HangingMemory : public HostMemory {
 public:
  HangingMemory(int hang, std::function<void()> meanwhile)
      : hang_(hang), meanwhile_(std::move(meanwhile)) {}
  absl::Status Wait(Download) override {
    if (++waits_ != hang_ || !status_.ok()) return status_;
    meanwhile_();
    status_ = HungDeviceError("device fake:0 has not finished its work");
    return status_;
  }
  absl::Status status() const override { return status_; }

 private:
  const int hang_;
  const std::function<void()> meanwhile_;
  int waits_ = 0;
  absl::Status status_;
};

class HangingDevice : public CpuDevice<float> {
 public:
  HangingDevice(int hang, std::function<void()> meanwhile)
      : CpuDevice<float>(1), memory_(hang, std::move(meanwhile)) {}
  DeviceMemory& memory() override { return memory_; }

 private:
  HangingMemory memory_;
};

class HangingDevices : public Accelerators {
 public:
  HangingDevices(int hang, std::function<void()> meanwhile)
      : hang_(hang), meanwhile_(std::move(meanwhile)) {}
  absl::StatusOr<int> Count() const override { return 1; }
  absl::StatusOr<std::string> Name(int) const override { return "fake"; }
  absl::StatusOr<std::unique_ptr<Device<float>>> MakeFloat(int, MatrixPrecision) const override {
    ++opened_;
    return std::make_unique<HangingDevice>(hang_, meanwhile_);
  }
  absl::StatusOr<std::unique_ptr<Device<double>>> MakeDouble(int) const override {
    return absl::UnimplementedError("not of this job's dtype");
  }
  int opened() const { return opened_; }

 private:
  const int hang_;
  const std::function<void()> meanwhile_;
  mutable std::atomic<int> opened_{0};
};

// Counts the steps of a worker.
class StepCounter : public NoProgress {
 public:
  explicit StepCounter(std::atomic<int>& steps) : steps_(steps) {}
  void Stepped(uint64_t, std::optional<double>) override { ++steps_; }

 private:
  std::atomic<int>& steps_;
};

class HungDeviceTest : public ::testing::Test {
 protected:
  HungDeviceTest() {
    directory_.Write("iris.csv", *ReadFile("examples/iris/iris.csv", 1 << 20));
    job_ = directory_.Write("elastic.job", R"(
        name: "elastic" seed: 7 batch_size: 8 epochs: 100 threads: 1
        elastic { max_workers: 2 min_workers: 1 step_timeout_s: 2 }
        data { table { path: "iris.csv" } target: "class" validation_every: 5 mode: DYNAMIC }
        model { layers { dense { outputs: 3 } } }
        loss { logit_cross_entropy {} }
        optimizer { sgd { learning_rate: 0.01 } })");
  }

  WorkerOutcome Run(const std::string& name, uint32_t world_size, const Accelerators& devices,
                    const Extensions& extensions = NoExtensions()) {
    WorkerOptions options;
    options.job = job_;
    options.server = cluster_.coordinator();
    options.name = name;
    options.world_size = world_size;
    options.device = &devices == &NoAccelerators() ? "cpu" : "cuda";
    std::ostringstream out;
    return RunWorker(options,
                     {out, /*out_is_terminal=*/false, stop_, Clock::Real(),
                      [](const char*) -> const char* { return nullptr; }, extensions, devices});
  }

  StopSignal stop_;  // before the threads of the cluster
  TemporaryDirectory directory_;
  std::string job_;
  testing::Cluster cluster_;
};

class HungDevicesTest : public HungDeviceTest, public ::testing::WithParamInterface<int> {};

// The job continues without the worker, which is dropped before the wait for its device ends. After
// some steps of the other worker, it knows this.
TEST_P(HungDevicesTest, DoesNotRejoin) {
  std::atomic<int> steps{0};
  Extensions counts;
  counts.loggers = {[&](const LoggedWorker&) -> absl::StatusOr<std::unique_ptr<Progress>> {
    return std::make_unique<StepCounter>(steps);
  }};
  const HangingDevices devices(/*hang=*/GetParam(), [&] {
    EXPECT_NE(cluster_.journal().WaitForLine({"\"hangs\"", "is dropped"}, absl::Minutes(1)), "");
    const int before = steps;
    EXPECT_TRUE(testing::WaitUntil([&] { return steps > before + 50; }));
  });
  std::thread other([&] { SYNCGRADS_EXPECT_OK(Run("works", 2, NoAccelerators(), counts).status); });
  const WorkerOutcome outcome = Run("hangs", 2, devices);
  EXPECT_TRUE(IsHungDevice(outcome.status)) << outcome.status;
  EXPECT_EQ(devices.opened(), 1);
  other.join();
}

// A step has four waits or fewer, so each of its waits is among these: also those in which a part
// of the gradients has been pushed.
INSTANTIATE_TEST_SUITE_P(Waits, HungDevicesTest, ::testing::Range(9, 13));

TEST_F(HungDeviceTest, IsVisibleAlsoAfterAStopSignal) {
  const HangingDevices devices(/*hang=*/10, [this] {
    kill(getpid(), SIGTERM);
    EXPECT_TRUE(testing::WaitUntil([this] { return stop_.requested(); }));
  });
  const WorkerOutcome outcome = Run("hangs", 1, devices);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  EXPECT_TRUE(IsHungDevice(outcome.status));
}

}  // namespace
}  // namespace syncgrads
