#include "server/core/coordinator/local_server.h"

#include <variant>
#include <vector>

namespace syncgrads::server {

void LocalServer::Send(const PlanChange& change) {
  run_([this, change] { Apply(change); });
}

void LocalServer::Prepare(const GroupPreparation& preparation) {
  run_([this, preparation] { jobs_.Prepare(preparation); });
}

void LocalServer::Apply(const PlanChange& change) {
  const std::vector<GroupRound> open = jobs_.Apply(change);
  if (std::holds_alternative<EpochProposed>(change.kind)) {
    coordinator_.OpenRounds(ServerIndex{0}, change.sequence, open);
  }
  coordinator_.Applied(ServerIndex{0}, this, change.sequence);
}

}  // namespace syncgrads::server
