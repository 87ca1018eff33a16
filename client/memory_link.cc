#include "client/memory_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shm/handover.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// For a server on this host to answer.
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::StatusOr<FdSocket::Message> Ask(FdSocket& socket, absl::string_view text,
                                      const FileDescriptor* descriptor) {
  const absl::Time deadline = absl::Now() + kPatience;
  SYNCGRADS_RETURN_IF_ERROR(socket.Send(text, descriptor, deadline));
  return socket.Receive(deadline);
}

}  // namespace

MemoryLink::MemoryLink(DataHello hello, const SharedBuffers& buffers,
                       std::function<void(const std::string&)> on_path)
    : hello_(std::move(hello)), buffers_(buffers), on_path_(std::move(on_path)) {}

MemoryLink::~MemoryLink() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (socket_ != nullptr) socket_->Shutdown();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void MemoryLink::OnWelcome(const DataWelcome& welcome) {
  if (welcome.socket.empty()) return Refuse(welcome.refusal);
  MutexLock lock(mutex_);
  // What another process has, this link has not; payloads to it go over the stream.
  if (state_ != State::kUnknown || stopping_) {
    if (welcome.socket != address_ && socket_ != nullptr) socket_->Shutdown();
    return;
  }
  state_ = State::kConnecting;
  address_ = welcome.socket;
  thread_ = std::thread([this] { Run(); });
}

void MemoryLink::Offer() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void MemoryLink::Want(GroupId group) {
  MutexLock lock(mutex_);
  if (results_.contains(group)) return;
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
  return state_ == State::kConnected && region < offered_;
}

std::shared_ptr<const PeerRegion> MemoryLink::Results(GroupId group) const {
  MutexLock lock(mutex_);
  const auto found = results_.find(group);
  return found == results_.end() ? nullptr : found->second;
}

bool MemoryLink::SettledLocked() const {
  return wanted_.empty() && buffers_.From(offered_).empty();
}

void MemoryLink::Run() {
  std::string address;
  {
    MutexLock lock(mutex_);
    address = address_;
  }
  absl::StatusOr<FdSocket> connected = FdSocket::Connect(address);
  if (!connected.ok()) return Refuse(std::string(connected.status().message()));
  FdSocket* socket = nullptr;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    socket_ = std::make_unique<FdSocket>(*std::move(connected));
    socket = socket_.get();
  }
  absl::Status status = Greet(*socket);
  if (status.ok() && on_path_) {
    on_path_(absl::StrCat("payloads go through shared memory (socket @", address, ")"));
  }
  while (status.ok()) {
    const SharedBuffers::Region* region = nullptr;
    std::optional<GroupId> group;
    {
      MutexLock lock(mutex_);
      state_ = State::kConnected;
      changed_.NotifyAll();
      while (!stopping_ && SettledLocked()) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      if (stopping_) return;
      const std::vector<const SharedBuffers::Region*> regions = buffers_.From(offered_);
      if (!regions.empty()) {
        region = regions.front();
      } else {
        group = *wanted_.begin();
      }
    }
    status = region != nullptr ? OfferTo(*socket, *region) : Fetch(*socket, *group);
  }
  Refuse(std::string(status.message()));
}

absl::Status MemoryLink::Greet(FdSocket& socket) {
  PushHeader header;
  header.hello = hello_;
  SYNCGRADS_ASSIGN_OR_RETURN(const FdSocket::Message answer,
                             Ask(socket, EncodeHeader(header, 0), nullptr));
  return answer.text == kHandoverOk ? absl::OkStatus() : absl::UnavailableError(answer.text);
}

absl::Status MemoryLink::OfferTo(FdSocket& socket, const SharedBuffers::Region& region) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor descriptor, region.memory->ReadOnlyDescriptor());
  SYNCGRADS_ASSIGN_OR_RETURN(
      const FdSocket::Message answer,
      Ask(socket, ToText({HandoverRequest::Kind::kOffer, region.number}), &descriptor));
  if (answer.text != kHandoverOk) return absl::UnavailableError(answer.text);
  MutexLock lock(mutex_);
  offered_ = region.number + 1;
  return absl::OkStatus();
}

absl::Status MemoryLink::Fetch(FdSocket& socket, GroupId group) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      const FdSocket::Message answer,
      Ask(socket, ToText({HandoverRequest::Kind::kResults, ToNumber(group)}), nullptr));
  std::shared_ptr<const PeerRegion> results;
  // Refused where the results are too small to be shared; they are then sent.
  if (answer.text == kHandoverOk) {
    SYNCGRADS_ASSIGN_OR_RETURN(results, PeerRegion::Map(answer.descriptor));
  }
  MutexLock lock(mutex_);
  if (results != nullptr) results_[group] = std::move(results);
  wanted_.erase(group);
  return absl::OkStatus();
}

void MemoryLink::Refuse(const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kRefused || stopping_) return;
    state_ = State::kRefused;
    changed_.NotifyAll();
  }
  if (on_path_) on_path_(absl::StrCat("payloads go over the stream: ", reason));
}

}  // namespace syncgrads::client
