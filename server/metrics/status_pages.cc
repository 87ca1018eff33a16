#include "server/metrics/status_pages.h"

#include <google/protobuf/util/json_util.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/process_metrics.h"
#include "common/rpc/build_info.h"
#include "server/metrics/server_metrics.h"
#include "server/page/live_page.h"

namespace syncgrads::server {
namespace {

HttpReply Metrics(const v1::GetStatusReply& status) {
  MetricFamilies families;
  AddServerMetrics(status, families);
  AddProcessMetrics(BuildLabels("ps-server"), families);
  return {200, kMetricsContentType, families.Text()};
}

HttpReply Readiness(const v1::GetStatusReply& status) {
  const absl::Status ready = ReadinessOf(status);
  HttpReply reply;
  reply.status = ready.ok() ? 200 : 503;
  reply.body = ready.ok() ? "ok\n" : absl::StrCat(ready.message(), "\n");
  return reply;
}

// Returns the message as JSON, in one line unless `in_lines`.
//
// Errors:
//   Internal  the message cannot be converted
absl::StatusOr<std::string> JsonOf(const google::protobuf::Message& message, bool in_lines) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = in_lines;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto converted = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!converted.ok()) return absl::InternalError(converted.ToString());
  return json;
}

HttpReply Json(const google::protobuf::Message& message) {
  absl::StatusOr<std::string> json = JsonOf(message, /*in_lines=*/true);
  if (!json.ok()) {
    return {500, "text/plain; charset=utf-8", absl::StrCat(json.status().message(), "\n")};
  }
  return {200, "application/json", *std::move(json)};
}

}  // namespace

HttpPages StatusPages(FillStatus status, FillStatus readiness, FillCurves curves,
                      FillEvents events) {
  HttpPages pages;
  pages["/metrics"] = [status] {
    v1::GetStatusReply reply;
    status(reply);
    return Metrics(reply);
  };
  pages["/livez"] = [] { return HttpReply{.body = "ok\n"}; };
  pages["/readyz"] = [readiness = std::move(readiness)] {
    v1::GetStatusReply reply;
    readiness(reply);
    return Readiness(reply);
  };
  pages["/status.json"] = [status] {
    v1::GetStatusReply reply;
    status(reply);
    return Json(reply);
  };
  pages["/curves.json"] = [curves = std::move(curves)] {
    v1::Curves all;
    curves(all);
    return Json(all);
  };
  pages["/log.json"] = [events = std::move(events)] {
    v1::EventsReply newest;
    events(newest);
    return Json(newest);
  };
  AddLivePage(pages);
  return pages;
}

HttpEventPages StatusEvents(FillStatus status) {
  return {{"/events", [status = std::move(status)]() -> absl::StatusOr<std::string> {
             v1::GetStatusReply reply;
             status(reply);
             return JsonOf(reply, /*in_lines=*/false);
           }}};
}

}  // namespace syncgrads::server
