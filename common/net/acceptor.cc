#include "common/net/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/address.h"
#include "common/net/peer_user.h"
#include "common/shm/fd_socket.h"

namespace syncgrads {
namespace {

// The backoff in milliseconds before accept() is retried, if not even the reserved descriptor is
// available.
constexpr int kBackoffMs = 50;
// How long a connection may be taken after the acceptor has stopped.
constexpr absl::Duration kMostToTake = absl::Seconds(1);
// How long a connection may be taken while all takers are busy.
constexpr absl::Duration kMostWhileOthersWait = absl::Seconds(2);
// The maximum number of connections to accept from one socket before the next socket's turn.
constexpr int kAtOnce = 64;
// The time between two looks at the calls of gRPC, and while too many wait. A look takes about 10
// us, and then another 20 us for each connection.
constexpr int kLookForFloodMs = 20, kLookInFloodMs = 10;
// The time between two looks at the strangers. A look takes about a microsecond for each of them.
int LookAtStrangersMs(size_t strangers) { return 10 + static_cast<int>(strangers / 20); }

// Returns the shorter one of two timeouts of poll(); -1 is the longest.
int Earlier(int one, int other) {
  return static_cast<int>(std::min(static_cast<unsigned>(one), static_cast<unsigned>(other)));
}

FileDescriptor NewReserve() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// Returns the address without the port; empty for a unix socket. An IPv4 address in the form
// ::ffff:10.0.0.1 is 10.0.0.1.
HostPort AddressOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return {text, ntohs(in.sin_port)};
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
  const uint8_t* const bytes = in6.sin6_addr.s6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
    inet_ntop(AF_INET, bytes + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, bytes, text, sizeof(text));
  }
  return {text, ntohs(in6.sin6_port)};
}

}  // namespace

Acceptor::Acceptor(std::vector<FileDescriptor> listening, OpenConnections& connections,
                   Strangers* strangers, CallsOfGrpc calls, Warn warn, Take take)
    : listening_(std::move(listening)),
      connections_(connections),
      strangers_(strangers),
      warn_(std::move(warn)),
      take_(std::move(take)),
      reserve_(NewReserve()),
      taker_is_idle_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (calls.open != nullptr) flood_.emplace(std::move(calls), connections_);
  thread_ = std::thread([this] { Run(); });
}

Acceptor::~Acceptor() {
  stop_.Set();
  thread_.join();
  const auto is_busy = [](const Taker& taker) { return taker.busy.load(); };
  const absl::Time deadline = MonotonicNow() + kMostToTake;
  uint64_t times = 0;
  while (std::any_of(takers_.begin(), takers_.end(), is_busy) &&
         AwaitSocket(taker_is_idle_.get(), POLLIN, deadline) &&
         read(taker_is_idle_.get(), &times, sizeof(times)) > 0) {
  }
  for (Taker& taker : takers_) {
    MutexLock lock(taker.mutex);
    if (taker.copy.valid()) ResetConnection(taker.copy.get());
  }
  for (Taker& taker : takers_) taker.thread.Finish();
}

void Acceptor::Run() {
  std::vector<pollfd> polled = {{stop_.descriptor(), POLLIN, 0}, {taker_is_idle_.get(), POLLIN, 0}};
  for (const FileDescriptor& socket : listening_) polled.push_back({socket.get(), POLLIN, 0});
  while (true) {
    // Without an idle taker, the sockets are not looked at.
    const size_t looked_at = IdleTaker() != nullptr ? polled.size() : 2;
    const int timeout = Earlier(CutEndless(), Earlier(CutStrangers(), CutFloods()));
    if (poll(polled.data(), looked_at, timeout) < 0) continue;  // EINTR
    if (polled[0].revents != 0) return;
    uint64_t times = 0;
    if (polled[1].revents != 0 && read(taker_is_idle_.get(), &times, sizeof(times)) < 0) continue;
    if (!reserve_.valid()) reserve_ = NewReserve();
    bool back_off = false;
    for (size_t i = 2; i < looked_at; ++i) {
      if (polled[i].revents == 0) continue;
      Accepted accepted = Accepted::kOne;
      for (int n = 0; n < kAtOnce && accepted == Accepted::kOne; ++n) {
        accepted = AcceptFrom(listening_[i - 2]);
      }
      back_off |= accepted == Accepted::kNotYet;
    }
    // The socket stays readable: without a backoff this would be a busy loop. A stop request ends
    // the backoff.
    if (back_off) poll(polled.data(), 1, kBackoffMs);
  }
}

Acceptor::Taker* Acceptor::IdleTaker() {
  const auto idle =
      std::find_if(takers_.begin(), takers_.end(), [](const Taker& taker) { return !taker.busy; });
  return idle == takers_.end() ? nullptr : &*idle;
}

Acceptor::Accepted Acceptor::AcceptFrom(const FileDescriptor& listening) {
  if (IdleTaker() == nullptr) return Accepted::kNone;
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  FileDescriptor connection(accept4(listening.get(), reinterpret_cast<sockaddr*>(&address), &length,
                                    SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!connection.valid()) {
    if (errno == EAGAIN) return Accepted::kNone;
    // The connection was closed before it was accepted, or a signal interrupted the call.
    if (errno == ECONNABORTED || errno == EINTR) return Accepted::kOne;
    const bool without_descriptor = errno == EMFILE || errno == ENFILE;
    NoteRefusal("failed", std::strerror(errno));
    return without_descriptor ? RefuseFrom(listening) : Accepted::kNotYet;
  }
  const HostPort endpoint = AddressOf(address);
  const std::optional<unsigned> other_user = OtherUserOf(connection, address);
  const std::string peer =
      other_user.has_value() ? DescribeUser(*other_user) : NetworkOf(endpoint.host);
  const std::string past = connections_.PastLimit(peer);
  if (!past.empty()) {
    NoteRefusal("past limit", past);
    return Accepted::kOne;
  }
  const bool is_local = address.ss_family == AF_UNIX;
  if (is_local) {
    const absl::StatusOr<unsigned> user = PeerUserOf(connection);
    if (!user.ok() || *user != geteuid()) {
      NoteRefusal("other user",
                  user.ok() ? absl::StrCat("user ", *user,
                                           " has connected to the unix socket of user ", geteuid())
                            : std::string(user.status().message()));
      return Accepted::kOne;
    }
  }
  FileDescriptor copy(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid() ||
      (!is_local && !AddStranger(connection, ToString(endpoint), peer, other_user))) {
    NoteRefusal("failed", std::strerror(errno));
    return Accepted::kOne;
  }
  connections_.Add(connection, ToString(endpoint), peer);
  TakeIn(std::move(connection), std::move(copy), is_local);
  return Accepted::kOne;
}

Acceptor::Accepted Acceptor::RefuseFrom(const FileDescriptor& listening) {
  if (!reserve_.valid()) return Accepted::kNotYet;
  reserve_ = FileDescriptor();
  FileDescriptor refused(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  refused = FileDescriptor();
  // Another thread may have used the freed descriptor in the meantime.
  reserve_ = NewReserve();
  return reserve_.valid() ? Accepted::kOne : Accepted::kNotYet;
}

std::optional<unsigned> Acceptor::OtherUserOf(const FileDescriptor& connection,
                                              const sockaddr_storage& address) {
  if (strangers_ == nullptr || address.ss_family == AF_UNIX) return std::nullopt;
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (getsockname(connection.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return kUnknownUser;
  }
  // A peer that connects to a loopback address is on this host, whatever its own address is.
  if (!IsLoopback(AddressOf(own).host) && !IsLoopback(AddressOf(address).host)) {
    return std::nullopt;
  }
  const absl::StatusOr<unsigned> user = UserOfTcpPeer(address, own);
  if (!user.ok()) {
    // NotFound: the peer has closed its socket.
    if (absl::IsUnavailable(user.status())) {
      const std::optional<uint64_t> times = refusals_.Pass("user");
      if (times.has_value()) warn_(std::string(user.status().message()));
    }
    return kUnknownUser;
  }
  return *user == 0 || *user == geteuid() ? std::nullopt : std::optional<unsigned>(*user);
}

bool Acceptor::AddStranger(const FileDescriptor& connection, const std::string& endpoint,
                           const std::string& peer, std::optional<unsigned> other_user) {
  if (strangers_ == nullptr) return true;
  while (strangers_->size() >= std::max<size_t>(1, connections_.most() / 6)) {
    const std::optional<std::string> cut = strangers_->CutOldest();
    if (!cut.has_value()) break;
    NoteCut("room", *cut);
  }
  return strangers_->Add(connection, endpoint, peer, other_user);
}

int Acceptor::CutStrangers() {
  if (strangers_ == nullptr) return -1;
  const int interval = LookAtStrangersMs(strangers_->size());
  const absl::Time now = MonotonicNow();
  const absl::Duration elapsed = now - looked_at_strangers_;
  if (elapsed >= absl::Milliseconds(interval)) {
    looked_at_strangers_ = now;
    // If this process was stopped, the strangers could not be admitted in that time.
    const absl::Duration awake = std::min(elapsed, 2 * absl::Milliseconds(interval));
    for (const std::string& cut : strangers_->Cut(awake)) NoteCut("limit", cut);
  }
  return strangers_->size() > 0 ? interval : -1;
}

int Acceptor::CutFloods() {
  if (!flood_.has_value()) return -1;
  const auto interval = [this] {
    return absl::Milliseconds(flood_->is_flooded() ? kLookInFloodMs : kLookForFloodMs);
  };
  const absl::Time now = MonotonicNow();
  if (now - looked_at_calls_ >= interval()) {
    looked_at_calls_ = now;
    for (const std::string& cut : flood_->Look()) NoteCut("flood", cut);
  }
  return PollTimeout(looked_at_calls_ + interval());
}

int Acceptor::CutEndless() {
  if (IdleTaker() != nullptr) return -1;
  const absl::Time now = MonotonicNow();
  absl::Time next = absl::InfiniteFuture();
  for (Taker& taker : takers_) {
    const absl::Time last = taker.busy_since + kMostWhileOthersWait;
    if (now < last) {
      next = std::min(next, last);
      continue;
    }
    MutexLock lock(taker.mutex);
    if (!taker.copy.valid()) continue;
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    getpeername(taker.copy.get(), reinterpret_cast<sockaddr*>(&peer), &length);
    ResetConnection(taker.copy.get());
    taker.copy = FileDescriptor();
    NoteCut("endless", absl::StrCat(ToString(AddressOf(peer)), " has sent without a pause for ",
                                    absl::FormatDuration(now - taker.busy_since),
                                    ", and others wait for their turn"));
  }
  return PollTimeout(next);
}

void Acceptor::TakeIn(FileDescriptor connection, FileDescriptor copy, bool is_local) {
  Taker& taker = *IdleTaker();
  taker.busy = true;
  taker.busy_since = MonotonicNow();
  {
    MutexLock lock(taker.mutex);
    taker.copy = std::move(copy);
  }
  auto taken = std::make_shared<FileDescriptor>(std::move(connection));
  const auto number = static_cast<size_t>(&taker - takers_.data());
  taker.thread.Run([this, &taker, taken, is_local, number] {
    take_(std::move(*taken), is_local, number);
    {
      MutexLock lock(taker.mutex);
      taker.copy = FileDescriptor();
    }
    taker.busy = false;
    const uint64_t once = 1;
    [[maybe_unused]] const ssize_t written = write(taker_is_idle_.get(), &once, sizeof(once));
  });
}

void Acceptor::NoteRefusal(const std::string& kind, const std::string& why) {
  const std::optional<uint64_t> refusals = refusals_.Pass(kind);
  if (!refusals.has_value()) return;
  warn_(
      absl::StrCat("connections are refused (", *refusals, " since the last such warning): ", why));
}

void Acceptor::NoteCut(const std::string& kind, const std::string& which) {
  const std::optional<uint64_t> cuts = refusals_.Pass("cut: " + kind);
  if (!cuts.has_value()) return;
  warn_(absl::StrCat("connections are cut (", *cuts, " since the last such warning): ", which));
}

}  // namespace syncgrads
