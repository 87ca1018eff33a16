// The workers of a job, reached through a Client.

#ifndef SYNCGRADS_WORKER_TEAM_CLIENT_TEAM_H_
#define SYNCGRADS_WORKER_TEAM_CLIENT_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"
#include "worker/team/team.h"

namespace syncgrads {

// The most memory, in bytes, that a gather may take: its size is what the workers say.
inline constexpr size_t kMostGathered = size_t{1} << 30;

// Returns whether `workers` workers may gather contributions of up to `longest` bytes each, as one
// of them says, where this worker has `own` bytes.
//
// Errors:
//   DataLoss         `longest` is less than `own`
//   InvalidArgument  together they have more than kMostGathered
absl::Status CheckGather(absl::string_view name, int64_t longest, size_t own, uint32_t workers);

// Implements the Team over the client library. Thread-compatible.
class ClientTeam : public Team {
 public:
  // `client` has joined the job and outlives this object. `timeout` limits each call but Barrier.
  ClientTeam(Client& client, absl::Duration timeout) : client_(client), timeout_(timeout) {}

  std::string name() const override { return client_.name(); }
  uint32_t rank() const override { return client_.rank(); }
  uint32_t world_size() const override { return client_.world_size(); }
  bool is_newcomer() const override { return client_.is_newcomer(); }
  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                     Reduction reduction, bool contribute) override;
  absl::StatusOr<WaitForAll> StartAllReduce(absl::string_view name, absl::Span<double> values,
                                            Reduction reduction) override;
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                  absl::string_view bytes) override;
  absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                            uint32_t root) override;
  absl::Status Barrier(absl::string_view name) override {
    return client_.Barrier(name, absl::InfiniteDuration());
  }
  absl::StatusOr<Group*> Register(const GroupSpec& spec) override;
  absl::StatusOr<void*> AllocateGradients(size_t bytes) override;
  void ReleaseGradients(void* memory) override;
  void Leave() override;
  absl::Status SetLearningRateFactor(double factor) override {
    return client_.SetLearningRateFactor(factor, timeout_);
  }
  bool TakeCheckpointRequest() override { return client_.TakeCheckpointRequest(); }
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path) override {
    client_.ReportCheckpoint(step, path);
  }
  void ReportFigures(const TrainingFigures& figures) override;

 private:
  // A piece of memory from AllocateGradients. `in_use` is false after ReleaseGradients.
  struct Gradients {
    void* memory;
    size_t bytes;
    bool in_use;
  };

  Client& client_;
  const absl::Duration timeout_;
  // Kept for reuse, because the client frees memory only with itself.
  std::vector<Gradients> gradients_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TEAM_CLIENT_TEAM_H_
