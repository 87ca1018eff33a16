#include "server/core/coordinator/job_report.h"

#include <algorithm>

namespace syncgrads::server {

std::vector<MemberReport> ReportMembers(const JobMembers& members, const Epoch& newest,
                                        const JobPlan& plan, absl::Time now) {
  std::vector<MemberReport> reports;
  const auto add = [&](const JobMember& member, std::optional<uint32_t> rank) {
    reports.push_back({member.member.id, member.member.name, member.host, rank,
                       std::max(absl::ZeroDuration(), now - member.pulse->last_message()),
                       plan.HasEndedAny(member.member.id), member.gone, member.pulse->figures()});
  };
  for (uint32_t rank = 0; rank < newest.members.size(); ++rank) {
    const JobMember* const member = members.FindKnown(newest.members[rank].id);
    if (member != nullptr) add(*member, rank);
  }
  for (const JobMember* member : members.Ranked()) {
    if (!newest.Has(member->member.id)) add(*member, std::nullopt);
  }
  return reports;
}

}  // namespace syncgrads::server
