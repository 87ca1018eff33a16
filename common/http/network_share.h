// Shares the places and the time of the HTTP server among networks. Used by http_server.cc only.

#ifndef SYNCGRADS_COMMON_HTTP_NETWORK_SHARE_H_
#define SYNCGRADS_COMMON_HTTP_NETWORK_SHARE_H_

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace syncgrads {

// Returns the network that has to give up a place, so that `network` can have one more: its own if
// it has `most_of_network`; otherwise, if there are `most` places in all, the one that has the
// most, which is its own if no other has more. Returns nullopt if there is room. `taken` has the
// network of each place that is taken. See NetworkOf.
inline std::optional<std::string> NetworkToEvict(const std::vector<std::string>& taken,
                                                 const std::string& network, size_t most_of_network,
                                                 size_t most) {
  std::map<std::string, size_t> places;
  for (const std::string& one : taken) ++places[one];
  const size_t own = places[network];
  if (own >= most_of_network) return network;
  if (taken.size() < most) return std::nullopt;
  std::string fullest = network;
  for (const auto& [other, count] : places) {
    if (count > places[fullest]) fullest = other;
  }
  return fullest;
}

// One round in which each network has one turn: a step of a TLS handshake may take milliseconds,
// and one network may begin any number.
class NetworkTurns {
 public:
  // Returns whether the network has not had its turn.
  bool Take(const std::string& network) { return taken_.insert(network).second; }

 private:
  std::set<std::string> taken_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_NETWORK_SHARE_H_
