#include "server/metrics/status_pages.h"

#include <google/protobuf/util/json_util.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/process_metrics.h"
#include "server/metrics/server_metrics.h"
#include "server/page/live_page.h"

namespace syncgrads::server {
namespace {

HttpReply Metrics(const v1::GetStatusReply& status) {
  MetricFamilies families;
  AddServerMetrics(status, families);
  AddProcessMetrics("ps-server", families);
  return {200, kMetricsContentType, families.Text()};
}

HttpReply Readiness(const v1::GetStatusReply& status) {
  const absl::Status ready = ReadinessOf(status);
  HttpReply reply;
  reply.status = ready.ok() ? 200 : 503;
  reply.body = ready.ok() ? "ok\n" : absl::StrCat(ready.message(), "\n");
  return reply;
}

HttpReply Json(const v1::GetStatusReply& status) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpReply reply;
  reply.content_type = "application/json";
  const auto converted = google::protobuf::util::MessageToJsonString(status, &reply.body, options);
  if (!converted.ok()) return {500, "text/plain; charset=utf-8", converted.ToString() + "\n"};
  return reply;
}

}  // namespace

HttpPages StatusPages(FillStatus fill) {
  const auto from_status = [&fill](HttpReply (*page)(const v1::GetStatusReply&)) {
    return [fill, page] {
      v1::GetStatusReply status;
      fill(status);
      return page(status);
    };
  };
  HttpPages pages;
  pages["/metrics"] = from_status(Metrics);
  pages["/livez"] = [] { return HttpReply{.body = "ok\n"}; };
  pages["/readyz"] = from_status(Readiness);
  pages["/status.json"] = from_status(Json);
  AddLivePage(pages);
  return pages;
}

}  // namespace syncgrads::server
