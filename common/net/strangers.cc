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

// The size of the buffer of received bytes that were not read; the kernel makes it twice as large.
// A call that is reset takes 28 bytes of it.
constexpr int kSmallBuffer = 16 << 10;

// Makes the buffer small and keeps it so. Returns the size that it had; 0 if it was left as it was,
// because it could not grow again (before Linux 5.14).
int MakeBufferSmall(const FileDescriptor& connection) {
  int size = 0;
  socklen_t length = sizeof(size);
  const int locks = SOCK_RCVBUF_LOCK;
  if (setsockopt(connection.get(), SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof(locks)) != 0 ||
      getsockopt(connection.get(), SOL_SOCKET, SO_RCVBUF, &size, &length) != 0) {
    return 0;
  }
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVBUF, &kSmallBuffer, sizeof(kSmallBuffer));
  return size;
}

// Undoes MakeBufferSmall, which has returned `size`.
void LetBufferGrow(const FileDescriptor& connection, int size) {
  if (size == 0) return;
  const int half = size / 2;  // the kernel makes it twice as large
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVBUF, &half, sizeof(half));
  const int locks = 0;
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
  const int buffer = MakeBufferSmall(copy);
  MutexLock lock(mutex_);
  if (other_user.has_value() && ended_.size() >= kMostEnded) {
    errno = EUSERS;
    return false;
  }
  // An earlier connection with the same endpoint must have ended.
  const auto earlier = strangers_.find(endpoint);
  if (earlier != strangers_.end()) EraseLocked(earlier);
  ended_.erase(endpoint);
  strangers_[endpoint] = {std::move(copy), network, other_user, ++added_, buffer};
  return true;
}

void Strangers::Begin(const std::string& endpoint) {
  MutexLock lock(mutex_);
  const auto found = strangers_.find(endpoint);
  if (found == strangers_.end() || found->second.is_admitted) return;
  // Cut logs it.
  if (++found->second.streams > limits_.streams) ResetConnection(found->second.copy.get());
}

void Strangers::Admit(const std::string& endpoint, bool may_send_much) {
  MutexLock lock(mutex_);
  const auto found = strangers_.find(endpoint);
  if (found == strangers_.end()) return;
  Stranger& stranger = found->second;
  if (!stranger.is_admitted) {
    ++admitted_;
    stranger.is_admitted = true;
    stranger.admitted_at = stranger.age;
    stranger.admitted_bytes = BytesRead(stranger.copy).value_or(0);
  }
  if (!may_send_much) return;
  LetBufferGrow(stranger.copy, stranger.buffer);
  EraseLocked(found);
}

std::optional<unsigned> Strangers::OtherUserOf(const std::string& endpoint) const {
  MutexLock lock(mutex_);
  if (const auto found = strangers_.find(endpoint); found != strangers_.end()) {
    return found->second.is_admitted ? std::nullopt : found->second.other_user;
  }
  const auto ended = ended_.find(endpoint);
  return ended == ended_.end() ? std::nullopt : std::optional<unsigned>(ended->second.user);
}

size_t Strangers::size() const {
  MutexLock lock(mutex_);
  return strangers_.size() - admitted_;
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
      cut.push_back(absl::StrCat(one->first, excess));
    }
    EraseLocked(one);
  }
  for (auto& [endpoint, ended] : ended_) ended.age += elapsed;
  std::erase_if(ended_, [this](const auto& one) { return one.second.age > limits_.time; });
  return cut;
}

std::string Strangers::CheckLimits(Stranger& stranger, std::optional<int64_t> bytes) const {
  constexpr absl::string_view kNothing = " was admitted to nothing";
  if (!stranger.is_admitted && stranger.streams > limits_.streams) {
    return absl::StrCat(kNothing, " and has begun ", stranger.streams, " streams; the limit is ",
                        limits_.streams);
  }
  if (!bytes.has_value()) return "";
  const int64_t most = MostBytes(stranger);
  stranger.excess_since =
      *bytes > most ? std::min(stranger.excess_since, stranger.age) : absl::InfiniteDuration();
  if (stranger.age - stranger.excess_since >= limits_.grace) {
    return absl::StrCat(stranger.is_admitted ? " may only ask for something" : kNothing,
                        " and has sent ", *bytes, " bytes; the limit is ", most);
  }
  if (stranger.is_admitted) return "";
  if (*bytes > limits_.bytes) stranger.much_since = std::min(stranger.much_since, stranger.age);
  if (stranger.age - stranger.much_since >= limits_.grace_with_stream) {
    return absl::StrCat(kNothing, " within ", absl::FormatDuration(limits_.grace_with_stream),
                        " after it had sent more than ", limits_.bytes, " bytes");
  }
  if (stranger.age <= limits_.time) return "";
  return absl::StrCat(kNothing, " within ", absl::FormatDuration(limits_.time));
}

int64_t Strangers::MostBytes(const Stranger& stranger) const {
  if (!stranger.is_admitted) {
    return stranger.streams > 0 ? limits_.bytes_with_stream : limits_.bytes;
  }
  const double later = absl::ToDoubleSeconds(stranger.age - stranger.admitted_at);
  return stranger.admitted_bytes + limits_.bytes +
         static_cast<int64_t>(later * static_cast<double>(limits_.bytes_per_second));
}

std::optional<std::string> Strangers::CutOldest() {
  MutexLock lock(mutex_);
  std::map<std::string, size_t> of_network;
  for (const auto& [endpoint, stranger] : strangers_) {
    if (!stranger.is_admitted) ++of_network[stranger.network];
  }
  const auto most =
      std::max_element(of_network.begin(), of_network.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == of_network.end()) return std::nullopt;
  auto oldest = strangers_.end();
  for (auto one = strangers_.begin(); one != strangers_.end(); ++one) {
    if (one->second.is_admitted || one->second.network != most->first) continue;
    if (oldest == strangers_.end() || one->second.number < oldest->second.number) oldest = one;
  }
  std::string text = absl::StrCat(oldest->first, " makes room: ", most->second, " connections of ",
                                  most->first, " were admitted to nothing yet");
  ResetConnection(oldest->second.copy.get());
  EraseLocked(oldest);
  return text;
}

void Strangers::EraseLocked(Map::iterator one) {
  const Stranger& stranger = one->second;
  if (stranger.is_admitted) {
    --admitted_;
  } else if (stranger.other_user.has_value()) {
    ended_[one->first] = {*stranger.other_user, {}};
  }
  strangers_.erase(one);
}

}  // namespace syncgrads
