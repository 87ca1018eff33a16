#include "worker/run/serve_data.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::StatusOr<std::unique_ptr<DataServer>> StartServing(const Job& job, uint16_t port,
                                                         const std::string& token,
                                                         std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<DataServer> server,
                             DataServer::Start({job, token, port}));
  out << "ps-worker serves the data of " << job.file.name() << " on port " << server->port()
      << std::endl;
  return server;
}

absl::Status ServeData(const Job& job, uint16_t port, const std::string& token, StopSignal& stop,
                       std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<DataServer> server,
                             StartServing(job, port, token, out));
  absl::Notification stop_requested;
  const StopSignal::LastResort at_once(
      stop, [&] { stop_requested.Notify(); }, absl::ZeroDuration());
  stop_requested.WaitForNotification();
  return absl::OkStatus();
}

}  // namespace syncgrads
