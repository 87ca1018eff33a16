#include "worker/run/own_server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "proto/admin.pb.h"

namespace syncgrads {
namespace {

// How often the jobs that are waited for are reported.
constexpr absl::Duration kReportEvery = absl::Seconds(30);

}  // namespace

OwnServer::OwnServer(LogLevel level)
    : journal_(STDERR_FILENO, {.name = "server of ps-worker", .level = level}) {}

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const Options& options) {
  auto own = absl::WrapUnique(new OwnServer(options.level));
  server::ServerOptions server;
  server.port = options.port;
  server.tls = options.tls;
  server.only_own_user = !options.insecure;
  if (options.insecure || !options.tls.client_ca.empty()) server.bind = "0.0.0.0";
  server.first_generation = static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()));
  SYNCGRADS_ASSIGN_OR_RETURN(own->server_, server::Server::Start(server, own->journal_));
  return own;
}

std::string OwnServer::address() const { return absl::StrCat("127.0.0.1:", port()); }

void OwnServer::ReportOpenJobs(std::ostream& out) const {
  v1::GetStatusReply reply;
  server_->FillStatus(reply);
  for (const v1::JobStatus& job : reply.jobs()) {
    const auto workers =
        std::count_if(job.members().begin(), job.members().end(),
                      [](const v1::MemberStatus& member) { return !member.gone(); });
    out << "ps-worker serves until job \"" << job.job() << "\" ends, which has " << workers
        << (workers == 1 ? " worker" : " workers");
    if (workers == 0) {
      out << " and is closed after "
          << absl::FormatDuration(server::ServerOptions().abandoned_job_ttl);
    }
    out << std::endl;
  }
}

void OwnServer::Finish(const StopSignal& stop, std::ostream& out) {
  server_->Drain();
  absl::Time report_at = absl::InfinitePast();
  while (server_->has_open_jobs() && server_->status().ok() && !stop.requested()) {
    if (MonotonicNow() >= report_at) {
      ReportOpenJobs(out);
      report_at = MonotonicNow() + kReportEvery;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace syncgrads
