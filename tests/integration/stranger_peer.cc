// One of the two C++ workers that run beside tests/integration/stranger.py. It takes part in the
// same rounds and checks the same results. Its exit code is 0 if they were right.

#include <cmath>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client.h"
#include "common/status_macros.h"

ABSL_FLAG(std::string, coordinator, "", "host:port of server 0");
ABSL_FLAG(std::string, job, "", "the job's name");
ABSL_FLAG(uint32_t, rank, 0, "0 or 1; the stranger is 2");

namespace syncgrads {
namespace {

constexpr uint32_t kWorldSize = 3;
constexpr uint32_t kStranger = 2;
constexpr absl::Duration kTimeout = absl::Seconds(60);

template <typename T>
absl::Status Expect(const std::string& what, const T& value, const T& expected) {
  if (value == expected) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", absl::StrJoin(value, " "), ", not ", absl::StrJoin(expected, " ")));
}

absl::Status TakePartInOptOutAllReduces(Client& client, uint32_t rank) {
  for (uint32_t pattern = 0; pattern < (1u << kWorldSize); ++pattern) {
    double sum = 0;
    uint32_t taking_part = 0;
    for (uint32_t other = 0; other < kWorldSize; ++other) {
      if ((pattern >> other & 1) == 0) continue;
      sum += std::pow(10.0, other);
      ++taking_part;
    }
    std::vector<double> mine = {1, 2, 3}, output = {-1, -1, -1};
    for (double& value : mine) value *= std::pow(10.0, rank);
    absl::StatusOr<uint32_t> count =
        (pattern >> rank & 1) != 0
            ? client.AllReduce("opt_out", ArrayOf<double>(mine),
                               MutableArrayOf(absl::MakeSpan(output)), Reduction::kSum, kTimeout)
            : client.AllReduceSkip("opt_out", MutableArrayOf(absl::MakeSpan(output)),
                                   Reduction::kSum, kTimeout);
    SYNCGRADS_RETURN_IF_ERROR(count.status());
    const std::string what = absl::StrCat("pattern ", pattern);
    SYNCGRADS_RETURN_IF_ERROR(Expect<std::vector<uint32_t>>(what, {*count}, {taking_part}));
    const std::vector<double> expected = taking_part > 0
                                             ? std::vector<double>{sum, 2 * sum, 3 * sum}
                                             : std::vector<double>{-1, -1, -1};
    SYNCGRADS_RETURN_IF_ERROR(Expect(what, output, expected));
  }
  return absl::OkStatus();
}

float GradientOf(uint32_t rank, uint64_t step, size_t element) {
  return static_cast<float>((rank + 1) * step + element);
}

// Returns the average of the elements [begin, end) of the layout. The Python worker, if it
// contributes, has the weight 2.
std::vector<float> AverageOf(bool with_stranger, uint64_t step, size_t begin, size_t end) {
  std::vector<float> average;
  for (size_t element = begin; element < end; ++element) {
    float sum = GradientOf(0, step, element) + GradientOf(1, step, element);
    if (with_stranger) sum += 2 * GradientOf(kStranger, step, element);
    average.push_back(sum / (with_stranger ? 4 : 2));
  }
  return average;
}

absl::Status TakePartInAverageRounds(Client& client, uint32_t rank) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"kernel", DType::kF32, {2, 3}}, {"bias", DType::kF32, {2}}};
  spec.rule = Reduction::kAverage;
  spec.chunk_bytes = 16;
  SYNCGRADS_ASSIGN_OR_RETURN(Group * group, client.Register(spec, kTimeout));
  SYNCGRADS_ASSIGN_OR_RETURN(const TensorId kernel, group->Find("kernel"));
  SYNCGRADS_ASSIGN_OR_RETURN(const TensorId bias, group->Find("bias"));

  for (uint64_t step = 1; step <= 5; ++step) {
    std::vector<float> kernel_values, bias_values;
    for (size_t i = 0; i < 6; ++i) kernel_values.push_back(GradientOf(rank, step, i));
    for (size_t i = 6; i < 8; ++i) bias_values.push_back(GradientOf(rank, step, i));
    SYNCGRADS_RETURN_IF_ERROR(group->Push(kernel, kernel_values.data(), 24, kernel_values.data()));
    SYNCGRADS_RETURN_IF_ERROR(group->Push(bias, bias_values.data(), 8, bias_values.data()));
    SYNCGRADS_RETURN_IF_ERROR(group->WaitStep(kTimeout).status());
    // The Python worker skips the kernel in step 2 and everything in step 3, and ends after step 4.
    const std::string what = absl::StrCat("step ", step);
    SYNCGRADS_RETURN_IF_ERROR(
        Expect(what + ", kernel", kernel_values, AverageOf(step == 1 || step == 4, step, 0, 6)));
    SYNCGRADS_RETURN_IF_ERROR(Expect(what + ", bias", bias_values,
                                     AverageOf(step == 1 || step == 2 || step == 4, step, 6, 8)));
  }
  return group->End(kTimeout);
}

absl::Status Run() {
  ClientOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.job = absl::GetFlag(FLAGS_job);
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = kWorldSize;
  Client client(options);
  SYNCGRADS_RETURN_IF_ERROR(client.Join(kTimeout));
  SYNCGRADS_RETURN_IF_ERROR(
      Expect<std::vector<uint32_t>>("rank", {client.rank()}, {*options.rank}));
  SYNCGRADS_RETURN_IF_ERROR(TakePartInOptOutAllReduces(client, client.rank()));
  SYNCGRADS_RETURN_IF_ERROR(TakePartInAverageRounds(client, client.rank()));
  return client.Leave(kTimeout);
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = syncgrads::Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
