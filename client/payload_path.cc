#include "client/payload_path.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads::client {

std::optional<std::string> PayloadPath::OnShared(const std::string& socket) {
  shared_ = true;
  return Say(absl::StrCat("payloads go through shared memory (socket @", socket, ")"));
}

std::optional<std::string> PayloadPath::OnRefused(const std::string& reason) {
  refusal_ = reason;
  // Most often the server has died, and what it named with it. One that lives names it again.
  if (std::exchange(shared_, false)) named_.clear();
  if (named_.empty()) {
    socket_.clear();
    return Say(absl::StrCat("payloads go over TCP: ", reason));
  }
  // Nothing is said of one that has not been tried.
  if (named_ != failed_) socket_ = named_;
  return std::nullopt;
}

std::optional<std::string> PayloadPath::OnHeard(const std::string& socket) {
  if (socket.empty()) return std::nullopt;
  return Say(absl::StrCat("payloads go over a unix socket (@", socket, "): ", refusal_));
}

std::optional<std::string> PayloadPath::OnClosed(const std::string& socket,
                                                 const std::optional<absl::Status>& unheard) {
  if (socket.empty()) return std::nullopt;
  if (socket_ == socket) socket_.clear();
  if (!unheard.has_value()) return std::nullopt;
  failed_ = socket;
  return Say(absl::StrCat("payloads go over TCP: ", refusal_, "; nor does the unix socket @",
                          socket, " work: ", unheard->message()));
}

std::optional<std::string> PayloadPath::Say(std::string line) {
  if (line == said_) return std::nullopt;
  said_ = line;
  return line;
}

}  // namespace syncgrads::client
