#include "common/net/strangers.h"

#include <fcntl.h>
#include <linux/socket.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// States of a TCP connection, as in RFC 9293, with the kernel's numbers (include/net/tcp_states.h).
constexpr uint8_t kEstablished = 1, kCloseWait = 8;

// Returns the number of bytes that this process has read from the connection; nullopt if the
// process has ended it.
std::optional<int64_t> BytesRead(const FileDescriptor& connection) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(connection.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  if (info.tcpi_state != kEstablished && info.tcpi_state != kCloseWait) return std::nullopt;
  int unread = 0;
  if (ioctl(connection.get(), SIOCINQ, &unread) != 0) unread = 0;
  return static_cast<int64_t>(info.tcpi_bytes_received) - unread;
}

// Sets whether the kernel may let the buffer of received bytes that were not read grow. Does
// nothing before Linux 5.14.
void SetBufferMayGrow(const FileDescriptor& connection, bool may_grow) {
  const int locks = may_grow ? 0 : SOCK_RCVBUF_LOCK;
  setsockopt(connection.get(), SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof(locks));
}

}  // namespace

void ResetConnection(int connection) {
  const sockaddr none = {.sa_family = AF_UNSPEC, .sa_data = {}};
  // A unix socket cannot be reset.
  if (connect(connection, &none, sizeof(none)) != 0) shutdown(connection, SHUT_RDWR);
}

std::string DescribeUser(unsigned user) {
  if (user == kUnknownUser) return "an unknown user of this host";
  return absl::StrCat("user ", user, " of this host");
}

bool Strangers::Add(const FileDescriptor& connection, const std::string& endpoint,
                    const std::string& network, std::optional<unsigned> other_user) {
  FileDescriptor copy(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return false;
  SetBufferMayGrow(copy, false);
  MutexLock lock(mutex_);
  if (other_user.has_value() && ended_.size() >= kMostEnded) {
    errno = EUSERS;
    return false;
  }
  // An earlier connection with the same endpoint must have ended.
  ended_.erase(endpoint);
  strangers_[endpoint] = {std::move(copy), network, other_user, ++added_};
  return true;
}

void Strangers::Begin(const std::string& endpoint) {
  MutexLock lock(mutex_);
  const auto found = strangers_.find(endpoint);
  if (found == strangers_.end()) return;
  // Cut logs it.
  if (++found->second.streams > limits_.streams) ResetConnection(found->second.copy.get());
}

void Strangers::Admit(const std::string& endpoint) {
  MutexLock lock(mutex_);
  const auto found = strangers_.find(endpoint);
  if (found == strangers_.end()) return;
  SetBufferMayGrow(found->second.copy, true);
  strangers_.erase(found);
}

std::optional<unsigned> Strangers::OtherUserOf(const std::string& endpoint) const {
  MutexLock lock(mutex_);
  if (const auto found = strangers_.find(endpoint); found != strangers_.end()) {
    return found->second.other_user;
  }
  const auto ended = ended_.find(endpoint);
  return ended == ended_.end() ? std::nullopt : std::optional<unsigned>(ended->second.user);
}

size_t Strangers::size() const {
  MutexLock lock(mutex_);
  return strangers_.size();
}

std::vector<std::string> Strangers::Cut(absl::Duration elapsed) {
  std::vector<std::string> cut;
  MutexLock lock(mutex_);
  for (auto next = strangers_.begin(); next != strangers_.end();) {
    const auto one = next++;
    Stranger& stranger = one->second;
    stranger.age += elapsed;
    const std::optional<int64_t> bytes = BytesRead(stranger.copy);
    const std::string excess = CheckLimits(stranger, bytes);
    if (excess.empty() && bytes.has_value()) continue;
    if (!excess.empty()) {
      ResetConnection(stranger.copy.get());
      cut.push_back(absl::StrCat(one->first, " was admitted to nothing", excess));
    }
    EraseLocked(one);
  }
  for (auto& [endpoint, ended] : ended_) ended.age += elapsed;
  std::erase_if(ended_, [this](const auto& one) { return one.second.age > limits_.time; });
  return cut;
}

std::string Strangers::CheckLimits(Stranger& stranger, std::optional<int64_t> bytes) const {
  if (stranger.streams > limits_.streams) {
    return absl::StrCat(" and has begun ", stranger.streams, " streams; the limit is ",
                        limits_.streams);
  }
  if (!bytes.has_value()) return "";
  const int64_t most = stranger.streams > 0 ? limits_.bytes_with_stream : limits_.bytes;
  if (*bytes > limits_.bytes) stranger.much_since = std::min(stranger.much_since, stranger.age);
  stranger.excess_since =
      *bytes > most ? std::min(stranger.excess_since, stranger.age) : absl::InfiniteDuration();
  if (stranger.age - stranger.excess_since >= limits_.grace) {
    return absl::StrCat(" and has sent ", *bytes, " bytes; the limit is ", most);
  }
  if (stranger.age - stranger.much_since >= limits_.grace_with_stream) {
    return absl::StrCat(" within ", absl::FormatDuration(limits_.grace_with_stream),
                        " after it had sent more than ", limits_.bytes, " bytes");
  }
  if (stranger.age <= limits_.time) return "";
  return absl::StrCat(" within ", absl::FormatDuration(limits_.time));
}

std::optional<std::string> Strangers::CutOldest() {
  MutexLock lock(mutex_);
  std::map<std::string, size_t> of_network;
  for (const auto& [endpoint, stranger] : strangers_) ++of_network[stranger.network];
  const auto most =
      std::max_element(of_network.begin(), of_network.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == of_network.end()) return std::nullopt;
  auto oldest = strangers_.end();
  for (auto one = strangers_.begin(); one != strangers_.end(); ++one) {
    if (one->second.network != most->first) continue;
    if (oldest == strangers_.end() || one->second.number < oldest->second.number) oldest = one;
  }
  std::string text = absl::StrCat(oldest->first, " makes room: ", most->second, " connections of ",
                                  most->first, " were admitted to nothing yet");
  ResetConnection(oldest->second.copy.get());
  EraseLocked(oldest);
  return text;
}

void Strangers::EraseLocked(Map::iterator ended) {
  if (ended->second.other_user.has_value()) ended_[ended->first] = {*ended->second.other_user, {}};
  strangers_.erase(ended);
}

}  // namespace syncgrads
