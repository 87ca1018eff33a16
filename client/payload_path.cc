#include "client/payload_path.h"

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
  // Most often the server has died, and what it named with it. One that lives names it again.
  named_.clear();
  socket_.clear();
}

void PayloadPath::OnHeard(const std::string& socket) {
  if (!socket.empty()) heard_ = socket;
}

void PayloadPath::OnClosed(const std::string& socket, const std::optional<absl::Status>& unheard) {
  if (socket.empty()) return;
  if (socket_ == socket) socket_.clear();
  if (heard_ == socket) heard_.clear();
  if (!unheard.has_value()) return;
  failed_ = socket;
  failure_ = std::string(unheard->message());
}

std::optional<std::string> PayloadPath::TakeLine() {
  const std::string line = Line();
  if (line.empty() || line == said_) return std::nullopt;
  said_ = line;
  return line;
}

std::string PayloadPath::Line() const {
  if (!memory_.empty()) {
    return absl::StrCat("payloads go through shared memory (socket @", memory_, ")");
  }
  if (refusal_.empty()) return "";
  if (named_.empty()) return absl::StrCat("payloads go over TCP: ", refusal_);
  if (named_ == failed_) {
    return absl::StrCat("payloads go over TCP: ", refusal_, "; nor does the unix socket @", named_,
                        " work: ", failure_);
  }
  if (named_ == heard_) {
    return absl::StrCat("payloads go over a unix socket (@", named_, "): ", refusal_);
  }
  return "";  // It is being tried.
}

}  // namespace syncgrads::client
