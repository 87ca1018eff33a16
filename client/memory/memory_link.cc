#include "client/memory/memory_link.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/shm/handover.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// How long a server on this host may take to answer a request.
constexpr absl::Duration kTimeout = absl::Seconds(5);
// The delay between two attempts to connect to a busy server.
constexpr absl::Duration kRetry = absl::Milliseconds(20);

absl::StatusOr<FdSocket::Message> Ask(FdSocket& socket, absl::string_view text,
                                      const FileDescriptor* descriptor) {
  const absl::Time deadline = MonotonicNow() + kTimeout;
  // A server that refuses sends the reason and closes the connection. The reason can still be
  // received after sending has failed.
  const absl::Status sent = socket.Send(text, descriptor, deadline);
  absl::StatusOr<FdSocket::Message> answer = socket.Receive(deadline);
  if (!answer.ok() && !sent.ok()) return sent;
  return answer;
}

}  // namespace

MemoryLink::MemoryLink(DataHello hello, const SharedBuffers& buffers)
    : hello_(std::move(hello)), buffers_(buffers) {}

MemoryLink::~MemoryLink() { Stop(); }

void MemoryLink::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (socket_ != nullptr) socket_->Shutdown();
    changed_.NotifyAll();
  }
  MutexLock lock(joining_);
  if (thread_.joinable()) thread_.join();
}

void MemoryLink::SetListener(std::function<void(const std::string&)> on_shared,
                             std::function<void(const std::string&)> on_refused) {
  MutexLock lock(mutex_);
  on_shared_ = std::move(on_shared);
  on_refused_ = std::move(on_refused);
}

void MemoryLink::OnWelcome(const DataWelcome& welcome) {
  if (welcome.socket.empty()) return Refuse(welcome.refusal);
  absl::Status started;
  {
    MutexLock lock(mutex_);
    if (stopping_ || welcome.socket == address_) return;
    state_ = State::kConnecting;
    address_ = welcome.socket;
    // The new process has not been offered anything.
    offered_ = 0;
    not_taken_.clear();
    wanted_.merge(asked_for_);
    if (socket_ != nullptr) socket_->Shutdown();
    if (!thread_.joinable()) started = StartThread("shared memory", thread_, [this] { Run(); });
    changed_.NotifyAll();
  }
  if (!started.ok()) Refuse(std::string(started.message()));
}

void MemoryLink::Offer() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void MemoryLink::Fetch(GroupId group) {
  MutexLock lock(mutex_);
  if (asked_for_.contains(group)) return;
  wanted_.insert(group);
  changed_.NotifyAll();
}

void MemoryLink::AwaitSettled(absl::Time deadline) const {
  MutexLock lock(mutex_);
  while (!stopping_ && state_ != State::kRefused &&
         !(state_ == State::kConnected && SettledLocked())) {
    if (!changed_.WaitUntil(mutex_, deadline)) return;
  }
}

bool MemoryLink::is_shared() const {
  MutexLock lock(mutex_);
  return state_ == State::kConnected;
}

bool MemoryLink::Has(uint32_t region) const {
  MutexLock lock(mutex_);
  return state_ == State::kConnected && region < offered_ && !not_taken_.contains(region);
}

std::shared_ptr<const MappedResults> MemoryLink::Results(GroupId group) const {
  MutexLock lock(mutex_);
  const auto found = results_.find(group);
  return found == results_.end() ? nullptr : found->second;
}

bool MemoryLink::SettledLocked() const {
  return wanted_.empty() && buffers_.From(offered_).empty();
}

void MemoryLink::Run() {
  std::string address;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && address_ == address) {
        changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      if (stopping_) return;
      address = address_;
    }
    const absl::Status status = ShareWith(address);
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (address_ != address) continue;
    }
    Refuse(std::string(status.message()));
  }
}

absl::StatusOr<FdSocket> MemoryLink::Connect(const std::string& address) {
  const absl::Time deadline = MonotonicNow() + kTimeout;
  while (true) {
    absl::StatusOr<FdSocket> connected = FdSocket::Connect(address);
    if (!absl::IsResourceExhausted(connected.status()) || MonotonicNow() > deadline) {
      return connected;
    }
    const absl::Time next = MonotonicNow() + kRetry;
    MutexLock lock(mutex_);
    do {
      if (stopping_ || address_ != address) return connected;
    } while (changed_.WaitUntil(mutex_, next));
  }
}

absl::Status MemoryLink::ShareWith(const std::string& address) {
  SYNCGRADS_ASSIGN_OR_RETURN(FdSocket connected, Connect(address));
  FdSocket* socket = nullptr;
  {
    MutexLock lock(mutex_);
    if (stopping_ || address_ != address) return absl::OkStatus();
    socket_ = std::make_unique<FdSocket>(std::move(connected));
    socket = socket_.get();
  }
  SYNCGRADS_RETURN_IF_ERROR(Greet(*socket));
  std::function<void(const std::string&)> on_shared;
  {
    MutexLock lock(mutex_);
    on_shared = on_shared_;
  }
  if (on_shared) on_shared(address);
  while (true) {
    const SharedBuffers::Region* region = nullptr;
    std::optional<GroupId> group;
    {
      MutexLock lock(mutex_);
      if (address_ != address) return absl::OkStatus();
      state_ = State::kConnected;
      changed_.NotifyAll();
      while (!stopping_ && address_ == address && SettledLocked()) {
        changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      if (stopping_ || address_ != address) return absl::OkStatus();
      const std::vector<const SharedBuffers::Region*> regions = buffers_.From(offered_);
      if (!regions.empty()) {
        region = regions.front();
      } else {
        group = *wanted_.begin();
      }
    }
    SYNCGRADS_RETURN_IF_ERROR(region != nullptr ? OfferTo(address, *socket, *region)
                                                : Fetch(address, *socket, *group));
  }
}

absl::Status MemoryLink::Greet(FdSocket& socket) {
  // The hello has a secret: another process may have taken the name of the server's socket.
  SYNCGRADS_ASSIGN_OR_RETURN(const unsigned user, socket.PeerUser());
  if (user != geteuid()) {
    return absl::UnavailableError(absl::StrCat("the worker runs as user ", geteuid(),
                                               ", this server as ", user,
                                               "; memory is not shared"));
  }
  PushHeader header;
  header.hello = hello_;
  SYNCGRADS_ASSIGN_OR_RETURN(const FdSocket::Message answer,
                             Ask(socket, EncodeHeader(header, 0), nullptr));
  return answer.text == kHandoverOk ? absl::OkStatus() : absl::UnavailableError(answer.text);
}

absl::Status MemoryLink::OfferTo(const std::string& address, FdSocket& socket,
                                 const SharedBuffers::Region& region) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor descriptor, region.memory->ReadOnlyDescriptor());
  SYNCGRADS_ASSIGN_OR_RETURN(
      const FdSocket::Message answer,
      Ask(socket, ToText({HandoverRequest::Kind::kOffer, region.number}), &descriptor));
  MutexLock lock(mutex_);
  if (address_ != address) return absl::OkStatus();
  offered_ = region.number + 1;
  // The server did not map the region, so payloads in it are sent over the stream.
  if (answer.text != kHandoverOk) not_taken_.insert(region.number);
  return absl::OkStatus();
}

absl::Status MemoryLink::Fetch(const std::string& address, FdSocket& socket, GroupId group) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      const FdSocket::Message answer,
      Ask(socket, ToText({HandoverRequest::Kind::kResults, ToNumber(group)}), nullptr));
  std::shared_ptr<const MappedResults> results;
  // The server refuses if the results are too small to be shared. They are then sent over the
  // stream.
  if (answer.text == kHandoverOk) {
    SYNCGRADS_ASSIGN_OR_RETURN(results, MappedResults::Map(answer.descriptor));
  }
  MutexLock lock(mutex_);
  if (address_ != address) return absl::OkStatus();
  if (results != nullptr) results_[group] = std::move(results);
  wanted_.erase(group);
  asked_for_.insert(group);
  return absl::OkStatus();
}

void MemoryLink::Refuse(const std::string& reason) {
  std::function<void(const std::string&)> on_refused;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    state_ = State::kRefused;
    on_refused = on_refused_;
    changed_.NotifyAll();
  }
  if (on_refused) on_refused(reason);
}

}  // namespace syncgrads::client
