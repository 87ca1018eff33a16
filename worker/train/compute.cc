#include "worker/train/compute.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/base/processors.h"
#include "worker/nn/cpu/cpu_device.h"

namespace syncgrads {
namespace {

absl::StatusOr<MatrixPrecision> ParsePrecision(absl::string_view text, bool on_cpu) {
  if (text.empty()) return on_cpu ? MatrixPrecision::kF32 : MatrixPrecision::kTf32;
  if (text == "f32") return MatrixPrecision::kF32;
  if (text == "tf32") return MatrixPrecision::kTf32;
  if (text == "bf16") return MatrixPrecision::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("--precision is \"", text, "\", must be f32, tf32 or bf16"));
}

absl::StatusOr<std::vector<int>> ParseList(absl::string_view device, absl::string_view list) {
  std::vector<int> numbers;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--device is \"", device, "\": \"", text, "\" is not a device number"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<int> ChooseAccelerator(absl::string_view device, absl::string_view list,
                                      uint32_t local_rank, int count) {
  if (list.empty()) return static_cast<int>(local_rank % static_cast<uint32_t>(count));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<int> numbers, ParseList(device, list));
  for (const int number : numbers) {
    if (number < count) continue;
    return absl::InvalidArgumentError(absl::StrCat("--device is \"", device, "\", but there are ",
                                                   count, " CUDA devices, numbered from 0"));
  }
  return numbers[local_rank % numbers.size()];
}

// At least 1.
int ShareOf(int processors, uint32_t sharers) {
  return std::max(processors / static_cast<int>(std::max(sharers, 1u)), 1);
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device, absl::string_view precision,
                                          uint32_t local_rank, const Accelerators& accelerators) {
  DeviceChoice choice;
  choice.accelerators = &accelerators;
  SYNCGRADS_ASSIGN_OR_RETURN(choice.precision, ParsePrecision(precision, device == "cpu"));
  if (device == "cpu") {
    if (choice.precision == MatrixPrecision::kF32) return choice;
    return absl::InvalidArgumentError(absl::StrCat(
        "--precision is ", precision, ", but --device is cpu, which supports f32 only"));
  }
  absl::string_view list = device;
  if (!absl::ConsumePrefix(&list, "cuda") || (!list.empty() && !absl::ConsumePrefix(&list, ":")) ||
      (device != "cuda" && list.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device is \"", device, "\", must be cpu, cuda, cuda:0, cuda:0,1, ..."));
  }
  const absl::StatusOr<int> count = accelerators.Count();
  if (!count.ok()) {
    return absl::Status(count.status().code(),
                        absl::StrCat("--device is ", device, ", but ", count.status().message()));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(choice.accelerator,
                             ChooseAccelerator(device, list, local_rank, *count));
  return choice;
}

std::string NameOf(const DeviceChoice& choice) {
  if (!choice.accelerator.has_value()) return "cpu";
  const int index = *choice.accelerator;
  return choice.accelerators->Name(index).value_or(absl::StrCat("cuda:", index));
}

std::string DescriptionOf(const DeviceChoice& choice) {
  if (!choice.accelerator.has_value()) return "";
  const std::string device =
      absl::StrCat("computes on ", NameOf(choice), " (cuda:", *choice.accelerator, ")");
  std::string libraries = choice.accelerators->Libraries();
  if (!libraries.empty()) libraries = absl::StrCat("; ", libraries);
  switch (choice.precision) {
    case MatrixPrecision::kF32:
      return absl::StrCat(device, ", matrix products in f32", libraries);
    case MatrixPrecision::kTf32:
      return absl::StrCat(device,
                          ", matrix products of F32 jobs in tf32; --precision=f32 is exact, and "
                          "slower",
                          libraries);
    case MatrixPrecision::kBf16:
      return absl::StrCat(device, ", F32 jobs with activations in bf16", libraries);
  }
  return device;
}

int ThreadsOf(const v1::JobFile& job, uint32_t world_size, const DeviceChoice& choice) {
  if (job.threads() > 0) return static_cast<int>(job.threads());
  const uint32_t workers = choice.local_workers > 0 ? choice.local_workers : world_size;
  return ShareOf(AvailableProcessors(), workers);
}

int ReadersOf(const v1::JobFile& job, const v1::DataSpec& source, uint32_t world_size,
              const DeviceChoice& choice) {
  const uint32_t readers = source.imagenet().readers();
  if (readers > 0) return static_cast<int>(readers);
  if (!choice.accelerator.has_value()) return ThreadsOf(job, world_size, choice);
  // The other accelerators may be used by workers of other jobs.
  const auto accelerators = static_cast<uint32_t>(choice.accelerators->Count().value_or(1));
  return ShareOf(AvailableProcessors(), std::max(choice.local_workers, accelerators));
}

template <typename T>
absl::StatusOr<std::unique_ptr<Device<T>>> MakeDevice(const v1::JobFile& job, uint32_t world_size,
                                                      const DeviceChoice& choice) {
  if (!choice.accelerator.has_value()) {
    const int threads = ThreadsOf(job, world_size, choice);
    try {
      return std::make_unique<CpuDevice<T>>(threads);
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start ", threads, " threads to compute with: ", error.what()));
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    return choice.accelerators->MakeFloat(*choice.accelerator, choice.precision);
  } else {
    return choice.accelerators->MakeDouble(*choice.accelerator);
  }
}

template absl::StatusOr<std::unique_ptr<Device<float>>> MakeDevice(const v1::JobFile&, uint32_t,
                                                                   const DeviceChoice&);
template absl::StatusOr<std::unique_ptr<Device<double>>> MakeDevice(const v1::JobFile&, uint32_t,
                                                                    const DeviceChoice&);

}  // namespace syncgrads
