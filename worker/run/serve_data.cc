#include "worker/run/serve_data.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::Status ServeData(DataServer::Options options, StopSignal& stop, std::ostream& out) {
  const std::string name = options.job.file.name();
  const absl::string_view reach = options.loopback_only ? ", to this host only" : "";
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<DataServer> server,
                             DataServer::Start(std::move(options)));
  absl::Notification stop_requested;
  const StopSignal::LastResort at_once(
      stop, [&] { stop_requested.Notify(); }, absl::ZeroDuration());
  out << "ps-worker serves the data of " << name << " on port " << server->port() << reach
      << std::endl;
  stop_requested.WaitForNotification();
  return absl::OkStatus();
}

}  // namespace syncgrads
