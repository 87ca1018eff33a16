// The pages of ps-server --metrics.

#ifndef SYNCGRADS_SERVER_METRICS_STATUS_PAGES_H_
#define SYNCGRADS_SERVER_METRICS_STATUS_PAGES_H_

#include <functional>

#include "common/http/http_server.h"
#include "proto/admin.pb.h"

namespace syncgrads::server {

// Fills in the status of the server. Called on any thread.
using FillStatus = std::function<void(v1::GetStatusReply&)>;
// Fills in the curves of the server's jobs. Called on any thread.
using FillCurves = std::function<void(v1::Curves&)>;
// Fills in the newest events of the server. Called on any thread.
using FillEvents = std::function<void(v1::EventsReply&)>;

// Returns these pages, which are made from the server's status, and those of the live page
// (server/page/live_page.h), which shows the status, the curves and the log:
//
//   /metrics      metrics in the text format of Prometheus
//   /livez        200 whenever it is answered; the body is "ok"
//   /readyz       200 if the server can serve jobs, otherwise 503; the body gives the reason
//   /status.json  the status as JSON: GetStatusReply of proto/admin.proto
//   /curves.json  the curves as JSON: Curves of proto/admin.proto
//   /log.json     the newest events as JSON: EventsReply of proto/admin.proto
//
// `readiness` fills in at least the fields of the status that ReadinessOf needs. It is the only one
// that "/readyz" calls, so that probes cost little.
HttpPages StatusPages(FillStatus status, FillStatus readiness, FillCurves curves,
                      FillEvents events);

// Returns the page "/events": each event is the status as JSON, in one line.
HttpEventPages StatusEvents(FillStatus status);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_METRICS_STATUS_PAGES_H_
