#include "server/check_options.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/net/congestion_control.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"

namespace syncgrads::server {

absl::StatusOr<std::string> Advertised(const ServerOptions& options, int port) {
  if (options.advertise.empty()) return "";
  SYNCGRADS_ASSIGN_OR_RETURN(
      const HostPort address,
      ParseHostAndPort("--advertise", options.advertise, static_cast<uint16_t>(port)));
  return ToString(address);
}

TlsSide SideOf(const ServerOptions& options) {
  // Server 0 connects to no other one.
  return options.index == 0 ? TlsSide::kListens : TlsSide::kBoth;
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (options.index == 0 && options.servers == 0) {
    return absl::InvalidArgumentError("servers is 0, must be at least 1");
  }
  if (options.servers > kMostServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers is ", options.servers, ", must be at most ", kMostServers));
  }
  if (options.heartbeat_interval < absl::Milliseconds(kShortestHeartbeatMs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("heartbeat_interval is ", absl::FormatDuration(options.heartbeat_interval),
                     ", must be at least ", kShortestHeartbeatMs, "ms"));
  }
  if (options.index == 0 && !options.coordinator.empty()) {
    // Servers that are all started with the same flags name server 0 to itself.
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string own, Advertised(options, options.port));
    if (options.coordinator != own) {
      return absl::InvalidArgumentError(
          absl::StrCat("server 0 is the coordinator, but --coordinator is \"", options.coordinator,
                       "\" and its own address, --advertise, is \"", own, "\""));
    }
  }
  if (options.index > 0 && options.coordinator.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", options.index, " needs the coordinator's address"));
  }
  if (options.index > 0) {
    SYNCGRADS_RETURN_IF_ERROR(ParseHostPort("--coordinator", options.coordinator).status());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const HostPort bind, ParseHostAndPort("--bind", options.bind, 0));
  if (bind.port != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bind is \"", options.bind, "\", which has a port; use --port for it"));
  }
  SYNCGRADS_RETURN_IF_ERROR(Advertised(options, 0).status());
  SYNCGRADS_RETURN_IF_ERROR(CheckTls(options.tls, SideOf(options)));
  return CheckCongestionControl(options.congestion_control);
}

}  // namespace syncgrads::server
