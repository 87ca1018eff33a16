#include "client/link/payload_path.h"

#include "absl/strings/str_cat.h"

namespace syncgrads::client {

void PayloadPath::OnNamed(const std::string& socket) {
  named_ = socket;
  socket_ = socket == failed_ ? "" : socket;
}

void PayloadPath::OnShared(const std::string& socket) {
  memory_ = socket;
  refusal_.clear();
}

void PayloadPath::OnRefused(const std::string& reason) {
  refusal_ = reason;
  if (memory_.empty()) return;
  memory_.clear();
  // Usually the server has died, and its socket with it. A live server names its socket again.
  named_.clear();
  socket_.clear();
}

void PayloadPath::OnReceived(const std::string& socket) {
  if (!socket.empty()) working_ = socket;
}

void PayloadPath::OnClosed(const std::string& socket, const std::optional<absl::Status>& failure) {
  if (socket.empty()) return;
  if (socket_ == socket) socket_.clear();
  if (working_ == socket) working_.clear();
  if (!failure.has_value()) return;
  failed_ = socket;
  failure_ = std::string(failure->message());
}

std::optional<PathReport> PayloadPath::TakeReport() {
  std::optional<PathReport> report = Report();
  if (!report.has_value() || report->line == reported_) return std::nullopt;
  reported_ = report->line;
  return report;
}

std::optional<PathReport> PayloadPath::Report() const {
  const auto report = [](const char* path, const std::string& details) {
    return PathReport{path, absl::StrCat("payloads go ", path, details)};
  };
  if (!memory_.empty()) {
    return report("through shared memory", absl::StrCat(" (socket @", memory_, ")"));
  }
  if (refusal_.empty()) return std::nullopt;
  if (named_.empty()) return report("over TCP", absl::StrCat(": ", refusal_));
  if (named_ == failed_) {
    return report("over TCP", absl::StrCat(": ", refusal_, "; the unix socket @", named_,
                                           " does not work either: ", failure_));
  }
  if (named_ == working_) {
    return report("over a unix socket", absl::StrCat(" (@", named_, "): ", refusal_));
  }
  return std::nullopt;  // The unix socket is being tried.
}

}  // namespace syncgrads::client
