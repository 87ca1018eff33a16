#include "common/net/open_connections.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/net/strangers.h"

namespace syncgrads {
namespace {

// While a limit is reached: the minimum time between two searches for closed connections.
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

std::string InParentheses(const std::string& flag) {
  return flag.empty() ? "" : absl::StrCat(" (", flag, ")");
}

}  // namespace

OpenConnections::OpenConnections(ConnectionLimits limits, Warn warn)
    : limits_(std::move(limits)), warn_(std::move(warn)) {}

std::string OpenConnections::PastLimit(const std::string& peer) {
  MutexLock lock(mutex_);
  const std::string past = PastLimitLocked(peer);
  if (past.empty() || MonotonicNow() < looked_for_closed_ + kLookAgain) return past;
  looked_for_closed_ = MonotonicNow();
  ForgetClosedLocked();
  return PastLimitLocked(peer);
}

std::string OpenConnections::PastLimitLocked(const std::string& peer) const {
  const auto of_peer = by_peer_.find(peer);
  if (of_peer != by_peer_.end() && of_peer->second >= limits_.connections_per_peer) {
    return absl::StrCat(of_peer->second, " connections of ", peer, " are open, the limit is ",
                        limits_.connections_per_peer,
                        InParentheses(limits_.connections_per_peer_flag));
  }
  const uint32_t at_most = most();
  if (connections_.size() < at_most) return "";
  return absl::StrCat(connections_.size(), " connections are open, the limit is ", at_most,
                      InParentheses(limits_.connections_flag));
}

void OpenConnections::Add(const FileDescriptor& connection, const std::string& endpoint,
                          const std::string& peer) {
  struct stat status = {};
  fstat(connection.get(), &status);
  MutexLock lock(mutex_);
  // An earlier connection with the same descriptor number must have been closed.
  const auto earlier = connections_.find(connection.get());
  if (earlier != connections_.end()) ForgetLocked(earlier);
  connections_[connection.get()] = {status.st_dev, status.st_ino, endpoint, peer};
  by_endpoint_[endpoint] = connection.get();
  if (!peer.empty()) ++by_peer_[peer];
}

uint32_t OpenConnections::size() const {
  MutexLock lock(mutex_);
  ForgetClosedLocked();
  return static_cast<uint32_t>(connections_.size());
}

uint32_t OpenConnections::most() const {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return limits_.connections;
  return static_cast<uint32_t>(std::min<rlim_t>(limits_.connections, limit.rlim_cur / 4 * 3));
}

bool OpenConnections::IsOf(int descriptor, const Connection& connection) {
  struct stat status;
  return fstat(descriptor, &status) == 0 && status.st_dev == connection.device &&
         status.st_ino == connection.inode;
}

void OpenConnections::ForgetClosedLocked() const {
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    const auto one = connection++;
    if (!IsOf(one->first, one->second)) ForgetLocked(one);
  }
}

void OpenConnections::ForgetLocked(ByDescriptor::iterator connection) const {
  const auto of_peer = by_peer_.find(connection->second.peer);
  if (of_peer != by_peer_.end() && --of_peer->second == 0) by_peer_.erase(of_peer);
  const auto of_endpoint = by_endpoint_.find(connection->second.endpoint);
  // A later connection may have the same endpoint.
  if (of_endpoint != by_endpoint_.end() && of_endpoint->second == connection->first) {
    by_endpoint_.erase(of_endpoint);
  }
  connections_.erase(connection);
}

bool OpenConnections::Reset(const std::string& endpoint) {
  MutexLock lock(mutex_);
  const auto found = by_endpoint_.find(endpoint);
  if (found == by_endpoint_.end()) return false;
  Connection& connection = connections_.at(found->second);
  if (connection.is_reset) return false;
  // The descriptor may be closed, and its number used again, at any time; its copy is not.
  const FileDescriptor copy(fcntl(found->second, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid() || !IsOf(copy.get(), connection)) return false;
  ResetConnection(copy.get());
  connection.is_reset = true;
  return true;
}

OpenConnections::Call::Call(OpenConnections& connections, std::string endpoint)
    : connections_(connections), endpoint_(std::move(endpoint)) {
  ++connections_.open_calls_;
  uint32_t calls = 0;
  const uint32_t most = connections_.limits_.calls_per_connection;
  {
    MutexLock lock(connections_.calls_mutex_);
    calls = ++connections_.calls_[endpoint_];
  }
  if (calls <= most || !connections_.Reset(endpoint_)) return;
  const std::optional<uint64_t> resets = connections_.resets_.Pass("");
  if (!resets.has_value()) return;
  connections_.warn_(absl::StrCat("connections are cut (", *resets,
                                  " since the last such warning): ", endpoint_, " has begun ",
                                  calls, " calls that have not ended; the limit is ", most));
}

OpenConnections::Call::~Call() {
  --connections_.open_calls_;
  MutexLock lock(connections_.calls_mutex_);
  const auto calls = connections_.calls_.find(endpoint_);
  if (--calls->second == 0) connections_.calls_.erase(calls);
}

}  // namespace syncgrads
