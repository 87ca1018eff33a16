#include "worker/run/serve_data.h"

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::StatusOr<std::unique_ptr<DataServer>> StartServing(DataServer::Options options,
                                                         std::ostream& out) {
  const std::string name = options.job.file.name();
  const absl::string_view reach = options.loopback_only ? " to this host only," : "";
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<DataServer> server,
                             DataServer::Start(std::move(options)));
  out << "ps-worker serves the data of " << name << reach << " on port " << server->port()
      << std::endl;
  return server;
}

absl::Status ServeData(DataServer::Options options, StopSignal& stop, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<DataServer> server,
                             StartServing(std::move(options), out));
  absl::Notification stop_requested;
  const StopSignal::LastResort at_once(
      stop, [&] { stop_requested.Notify(); }, absl::ZeroDuration());
  stop_requested.WaitForNotification();
  return absl::OkStatus();
}

}  // namespace syncgrads
