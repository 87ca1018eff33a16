#include "worker/run/own_server.h"

#include <unistd.h>

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads {

OwnServer::OwnServer(LogLevel level)
    : journal_(STDERR_FILENO, {.name = "server of ps-worker", .level = level}) {}

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const Options& options) {
  auto own = absl::WrapUnique(new OwnServer(options.level));
  server::ServerOptions server;
  server.port = options.port;
  server.tls = options.tls;
  if (options.insecure || !options.tls.client_ca.empty()) server.bind = "0.0.0.0";
  server.first_generation = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  SYNCGRADS_ASSIGN_OR_RETURN(own->server_, server::Server::Start(server, own->journal_));
  return own;
}

std::string OwnServer::address() const { return absl::StrCat("127.0.0.1:", port()); }

void OwnServer::Finish(const StopSignal& stop) {
  server_->Drain();
  while (server_->has_open_jobs() && server_->status().ok() && !stop.requested()) {
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace syncgrads
