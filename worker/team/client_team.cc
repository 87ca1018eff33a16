#include "worker/team/client_team.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// The timeout of leaving the job after an error.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);

}  // namespace

absl::Status CheckGather(absl::string_view name, int64_t longest, size_t own, uint32_t workers) {
  if (longest < static_cast<int64_t>(own)) {
    return absl::DataLossError(absl::StrCat("\"", name, "\": the longest contribution has ",
                                            longest, " bytes, but this worker's has ", own));
  }
  if (static_cast<size_t>(longest) > kMostGathered / std::max(workers, 1u)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\": contributions of ", workers, " workers with up to ", longest,
                     " bytes have more than the ", kMostGathered, " that a gather may take"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ClientTeam::AllReduce(absl::string_view name, absl::Span<double> values,
                                               Reduction reduction, bool contribute) {
  const Array array = MutableArrayOf(values);
  if (!contribute) return client_.AllReduceSkip(name, array, reduction, timeout_);
  return client_.AllReduce(name, array, array, reduction, timeout_);
}

absl::StatusOr<Team::WaitForAll> ClientTeam::StartAllReduce(absl::string_view name,
                                                            absl::Span<double> values,
                                                            Reduction reduction) {
  const Array array = MutableArrayOf(values);
  SYNCGRADS_ASSIGN_OR_RETURN(Pending pending,
                             client_.AllReduceAsync(name, array, array, reduction));
  return WaitForAll([pending = std::move(pending), timeout = timeout_]() mutable {
    return pending.Wait(timeout);
  });
}

// All contributions to a gather must have the same length. So the workers find the
// longest length first; then each sends its own length, its bytes, and zeros up to that
// length.
absl::StatusOr<std::vector<std::string>> ClientTeam::Gather(absl::string_view name,
                                                            absl::string_view bytes) {
  int64_t longest = static_cast<int64_t>(bytes.size());
  const Array length = MutableArrayOf(absl::MakeSpan(&longest, 1));
  SYNCGRADS_RETURN_IF_ERROR(
      client_.AllReduce(absl::StrCat(name, "/length"), length, length, Reduction::kMax, timeout_)
          .status());
  SYNCGRADS_RETURN_IF_ERROR(CheckGather(name, longest, bytes.size(), world_size()));
  const size_t words = 1 + (static_cast<size_t>(longest) + 7) / 8;
  std::vector<int64_t> sent(words, 0);
  sent[0] = static_cast<int64_t>(bytes.size());
  if (!bytes.empty()) std::memcpy(&sent[1], bytes.data(), bytes.size());
  std::vector<int64_t> received(words * world_size());
  // The name of a collective is fixed to one length.
  SYNCGRADS_ASSIGN_OR_RETURN(
      const uint32_t count,
      client_.AllGather(absl::StrCat(name, "/", words), ArrayOf(absl::MakeConstSpan(sent)),
                        MutableArrayOf(absl::MakeSpan(received)), timeout_));
  std::vector<std::string> gathered;
  for (size_t i = 0; i < count; ++i) {
    const int64_t* one = &received[i * words];
    if (one[0] < 0 || one[0] > longest) {
      return absl::DataLossError(absl::StrCat("\"", name,
                                              "\": malformed contribution: its length is ", one[0],
                                              " bytes, but the longest is ", longest));
    }
    gathered.emplace_back(reinterpret_cast<const char*>(one + 1), static_cast<size_t>(one[0]));
  }
  return gathered;
}

absl::Status ClientTeam::BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                                      uint32_t root) {
  return client_.BroadcastAll(name, tensors, root, timeout_);
}

absl::StatusOr<Group*> ClientTeam::Register(const GroupSpec& spec) {
  return client_.Register(spec, timeout_);
}

absl::StatusOr<void*> ClientTeam::AllocateGradients(size_t bytes) {
  for (Gradients& one : gradients_) {
    if (one.in_use || one.bytes < bytes) continue;
    one.in_use = true;
    std::memset(one.memory, 0, bytes);
    return one.memory;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(void* const memory, client_.AllocateGradients(bytes));
  gradients_.push_back({memory, bytes, /*in_use=*/true});
  return memory;
}

void ClientTeam::ReleaseGradients(void* memory) {
  for (Gradients& one : gradients_) one.in_use = one.in_use && one.memory != memory;
}

void ClientTeam::ReportFigures(const TrainingFigures& figures) {
  // Nothing that the trainer does depends on it, and a membership that is over has other reports.
  client_.ReportFigures(figures).IgnoreError();
}

void ClientTeam::Leave() {
  // Leave is refused while an operation is under way.
  if (!client_.Leave(std::min(timeout_, kLeaveTimeout)).ok()) client_.Abandon();
}

}  // namespace syncgrads
