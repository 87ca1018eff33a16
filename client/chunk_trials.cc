#include "client/chunk_trials.h"

#include <algorithm>
#include <cstring>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/names.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// The intended duration of a trial. The number of its steps is between kLeastSteps and kMostSteps.
constexpr absl::Duration kTrialTime = absl::Seconds(1);
constexpr absl::Duration kBetweenQuestions = absl::Seconds(1);
constexpr int kLeastSteps = 3;
constexpr int kMostSteps = 15;

// The contribution to one tensor. The result replaces it.
struct Buffer {
  TensorId tensor;
  std::vector<std::byte> bytes;
};

std::vector<Buffer> MakeBuffers(const GroupSpec& spec) {
  std::vector<Buffer> buffers;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSpec& tensor = spec.tensors[t];
    Buffer& buffer = buffers.emplace_back();
    buffer.tensor = TensorId{t};
    buffer.bytes.resize(tensor.bytes());
    if (tensor.dtype != DType::kF32) continue;
    // The values are not zeros, because codecs encode zeros in another time.
    for (size_t i = 0; i < buffer.bytes.size(); i += sizeof(float)) {
      const float value = static_cast<float>(i * 2654435761u % 1009) - 504;
      std::memcpy(&buffer.bytes[i], &value, sizeof(value));
    }
  }
  return buffers;
}

// Returns the name of a trial's job, which is the same on all workers. A name that would be too
// long is replaced by a hash of it (FNV-1a).
std::string NameOfTrial(const std::string& job, const std::string& group, int number) {
  std::string name = absl::StrCat(job, " (autotune ", group, " ", number, ")");
  if (name.size() <= kMaxNameBytes) return name;
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return absl::StrCat("autotune ", absl::Hex(hash, absl::kZeroPad16), " ", number);
}

// A trial is abandoned at the deadline, or when this worker is no longer a member.
struct Limits {
  absl::Time deadline;
  const std::function<absl::Status()>& still_member;

  absl::Duration left() const { return deadline - MonotonicNow(); }
};

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Repeats a wait until `limits` are reached. `wait` takes a timeout.
template <typename Wait>
absl::Status AwaitAsMember(const Limits& limits, Wait wait) {
  while (true) {
    SYNCGRADS_RETURN_IF_ERROR(limits.still_member());
    const absl::Status status = StatusOf(wait(std::min(limits.left(), kBetweenQuestions)));
    if (!absl::IsDeadlineExceeded(status) || limits.left() <= absl::ZeroDuration()) return status;
  }
}

absl::StatusOr<absl::Duration> MakeStep(Group& group, std::vector<Buffer>& buffers,
                                        const Limits& limits) {
  const absl::Time begun = MonotonicNow();
  // The last tensor is pushed first, as in a backward pass.
  for (auto buffer = buffers.rbegin(); buffer != buffers.rend(); ++buffer) {
    SYNCGRADS_RETURN_IF_ERROR(group.Push(buffer->tensor, buffer->bytes.data(), buffer->bytes.size(),
                                         buffer->bytes.data()));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      AwaitAsMember(limits, [&](absl::Duration timeout) { return group.WaitStep(timeout); }));
  return MonotonicNow() - begun;
}

// Replaces each time by that of the slowest member.
absl::Status Agree(Client& client, absl::string_view name, std::vector<absl::Duration>& times,
                   std::vector<double>& seconds, const Limits& limits) {
  seconds.clear();
  for (const absl::Duration time : times) seconds.push_back(absl::ToDoubleSeconds(time));
  const Array array = MutableArrayOf(absl::MakeSpan(seconds));
  SYNCGRADS_RETURN_IF_ERROR(
      client.AllReduce(name, array, array, Reduction::kMax, limits.left()).status());
  std::transform(seconds.begin(), seconds.end(), times.begin(), absl::Seconds<double>);
  return absl::OkStatus();
}

// The memory of a trial. It outlives the client, which uses it after a wait has timed out.
struct TrialMemory {
  std::vector<Buffer> buffers;
  std::vector<double> second, steps;
};

absl::StatusOr<ChunkTrial> Try(Client& client, const GroupSpec& spec, TrialMemory& memory,
                               const Limits& limits) {
  SYNCGRADS_ASSIGN_OR_RETURN(Group* const group, client.Register(spec, limits.left()));
  std::vector<Buffer>& buffers = memory.buffers = MakeBuffers(spec);
  // The first step makes connections and is not measured. The second one decides the number of
  // steps.
  SYNCGRADS_RETURN_IF_ERROR(MakeStep(*group, buffers, limits).status());
  SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration second, MakeStep(*group, buffers, limits));
  std::vector<absl::Duration> times = {second};
  SYNCGRADS_RETURN_IF_ERROR(Agree(client, "second", times, memory.second, limits));
  const auto steps = static_cast<int>(std::clamp<int64_t>(
      kTrialTime / std::max(times.front(), absl::Microseconds(1)), kLeastSteps, kMostSteps));
  times.clear();
  for (int step = 0; step < steps; ++step) {
    SYNCGRADS_ASSIGN_OR_RETURN(times.emplace_back(), MakeStep(*group, buffers, limits));
  }
  SYNCGRADS_RETURN_IF_ERROR(Agree(client, "steps", times, memory.steps, limits));
  return ChunkTrial{group->spec().chunk_bytes, Median(std::move(times))};
}

}  // namespace

absl::StatusOr<ChunkChoice> TuneChunks(const ClientOptions& options, uint32_t rank,
                                       uint32_t world_size, const GroupSpec& spec,
                                       const std::function<absl::Status()>& still_member,
                                       absl::Time deadline) {
  const Limits limits = {deadline, still_member};
  // The result of a step is pushed in the next one, so sums grow and may become infinite.
  GroupSpec trial = {.name = "trial",
                     .tensors = spec.tensors,
                     .compression = spec.compression,
                     .non_finite = OnBad::kAllow};
  if (const auto* reduction = std::get_if<Reduction>(&spec.rule)) trial.rule = *reduction;
  int number = 0;
  return ChooseChunks([&](uint32_t chunk_bytes) -> absl::StatusOr<ChunkTrial> {
    ClientOptions own;
    own.coordinator = options.coordinator;
    own.job = NameOfTrial(options.job, spec.name, ++number);
    own.token = options.token;
    own.tls = options.tls;
    own.rank = rank;
    own.world_size = world_size;
    own.connections_per_server = options.connections_per_server;
    own.congestion_control = options.congestion_control;
    own.connections = options.connections;
    own.shared_memory = options.shared_memory;
    own.unix_socket = options.unix_socket;
    trial.chunk_bytes = chunk_bytes;
    TrialMemory memory;
    Client client(own);
    SYNCGRADS_RETURN_IF_ERROR(
        AwaitAsMember(limits, [&](absl::Duration timeout) { return client.Join(timeout); }));
    SYNCGRADS_ASSIGN_OR_RETURN(const ChunkTrial tried, Try(client, trial, memory, limits));
    SYNCGRADS_RETURN_IF_ERROR(client.Leave(limits.left()));
    return tried;
  });
}

}  // namespace syncgrads::client
