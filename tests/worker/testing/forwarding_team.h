// A team that tests put around another one, to see or to change some of the calls.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_FORWARDING_TEAM_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_FORWARDING_TEAM_H_

#include <string>
#include <vector>

#include "worker/team/team.h"

namespace syncgrads {

// Forwards all calls to another team, which must outlive it.
class ForwardingTeam : public Team {
 public:
  explicit ForwardingTeam(Team& team) : team_(team) {}

  std::string name() const override { return team_.name(); }
  uint32_t rank() const override { return team_.rank(); }
  uint32_t world_size() const override { return team_.world_size(); }
  absl::StatusOr<uint32_t> AllReduce(absl::string_view name, absl::Span<double> values,
                                     Reduction reduction, bool contribute) override {
    return team_.AllReduce(name, values, reduction, contribute);
  }
  absl::StatusOr<WaitForAll> StartAllReduce(absl::string_view name, absl::Span<double> values,
                                            Reduction reduction) override {
    return team_.StartAllReduce(name, values, reduction);
  }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                  absl::string_view bytes) override {
    return team_.Gather(name, bytes);
  }
  absl::Status BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                            uint32_t root) override {
    return team_.BroadcastAll(name, tensors, root);
  }
  absl::Status Barrier(absl::string_view name) override { return team_.Barrier(name); }
  absl::StatusOr<Group*> Register(const GroupSpec& spec) override { return team_.Register(spec); }
  absl::StatusOr<void*> AllocateGradients(size_t bytes) override {
    return team_.AllocateGradients(bytes);
  }
  absl::Status SetLearningRateFactor(double factor) override {
    return team_.SetLearningRateFactor(factor);
  }

 private:
  Team& team_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_FORWARDING_TEAM_H_
