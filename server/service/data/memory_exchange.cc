#include "server/service/data/memory_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/random_number.h"
#include "common/shm/handover.h"
#include "common/signals/protocol.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

// The timeout for a worker to send its hello, and to receive an answer.
constexpr absl::Duration kTimeout = absl::Seconds(5);
// A region is mapped at once if it is not larger than this, with so many times the memory that the
// job needs here. The region of an honest worker has the gradients of all servers' chunks.
constexpr uint64_t kMappedAtOnce = 64 << 20;
constexpr uint64_t kTimesTheJob = 16;

// Not TotalMemory: what workers hand over counts in their control groups, not in this one.
uint64_t MachineMemory() {
  return static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
         static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryExchange>> MemoryExchange::Start(
    const Jobs& jobs, Journal& journal, MemoryExchangeOptions options) {
  std::string address = absl::StrCat("syncgrads-", getpid(), "-", absl::Hex(DrawRandomNumber()));
  SYNCGRADS_ASSIGN_OR_RETURN(FdListener listener, FdListener::Listen(address));
  std::unique_ptr<MemoryExchange> exchange(
      new MemoryExchange(std::move(listener), std::move(address), jobs, journal, options));
  SYNCGRADS_RETURN_IF_ERROR(StartThread("shared memory", exchange->acceptor_,
                                        [exchange = exchange.get()] { exchange->AcceptAll(); }));
  return exchange;
}

MemoryExchange::MemoryExchange(FdListener listener, std::string address, const Jobs& jobs,
                               Journal& journal, MemoryExchangeOptions options)
    : listener_(std::move(listener)),
      address_(std::move(address)),
      jobs_(jobs),
      journal_(journal),
      options_(options) {}

MemoryExchange::~MemoryExchange() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
    for (Connection& connection : connections_) connection.socket.Shutdown();
  }
  listener_.Shutdown();
  if (acceptor_.joinable()) acceptor_.join();
  // The acceptor has ended: connections_ does not change any more, and needs no lock.
  for (Connection& connection : connections_) connection.thread.join();
}

std::shared_ptr<MemberMemory> MemoryExchange::MemoryOf(const Job& job,
                                                       const DataHello& hello) const {
  MutexLock lock(mutex_);
  const auto member = members_.find({&job, hello.incarnation});
  return member == members_.end() ? nullptr : member->second;
}

bool MemoryExchange::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

void MemoryExchange::AcceptAll() {
  bool exhausted = false;
  while (!stopping()) {
    Reap();
    absl::StatusOr<FdSocket> accepted = listener_.Accept(MonotonicNow() + options_.interval);
    if (stopping()) return;
    if (accepted.ok()) {
      exhausted = false;
      Take(*std::move(accepted));
    } else if (absl::IsResourceExhausted(accepted.status())) {
      // The connection stays pending, and the next call would fail at once.
      if (!std::exchange(exhausted, true)) {
        journal_.Warn(absl::StrCat("cannot share memory with further workers at present: ",
                                   accepted.status().message()));
      }
      BackOff();
    } else if (!absl::IsDeadlineExceeded(accepted.status())) {
      journal_.Warn(
          absl::StrCat("cannot share memory with further workers: ", accepted.status().message()));
      return;
    }
  }
}

void MemoryExchange::BackOff() {
  const absl::Time until = MonotonicNow() + options_.interval;
  MutexLock lock(mutex_);
  while (!stopping_ && stopped_.WaitUntil(mutex_, until)) {
  }
}

void MemoryExchange::Reap() {
  // Joined and closed without the lock, which their threads take.
  std::list<Connection> over;
  {
    MutexLock lock(mutex_);
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      const auto next = std::next(connection);
      if (connection->over) over.splice(over.end(), connections_, connection);
      connection = next;
    }
  }
  for (Connection& connection : over) connection.thread.join();
}

absl::Status MemoryExchange::CheckUser(const FdSocket& socket) {
  SYNCGRADS_ASSIGN_OR_RETURN(const unsigned user, socket.PeerUser());
  if (user == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the worker runs as user ", user, ", this server as ", geteuid(), "; memory is not shared"));
}

void MemoryExchange::Take(FdSocket accepted) {
  // Checked first: processes of other users take none of the connections that are allowed.
  absl::Status started = CheckUser(accepted);
  if (started.ok()) {
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (connections_.size() < options_.max_connections) {
      Connection& connection = connections_.emplace_back(std::move(accepted));
      started = StartThread("shared memory", connection.thread,
                            [this, &connection] { Serve(connection); });
      if (started.ok()) return;
      accepted = std::move(connection.socket);
      connections_.pop_back();
    } else {
      started = absl::ResourceExhaustedError(
          absl::StrCat("this server shares memory with ", connections_.size(),
                       " processes, the limit is ", options_.max_connections));
    }
  }
  Refuse(accepted, std::string(started.message()));
}

void MemoryExchange::Refuse(FdSocket& socket, const std::string& reason) {
  bool says = false;
  {
    MutexLock lock(mutex_);
    const absl::Time now = MonotonicNow();
    says = now >= next_line_;
    if (says) next_line_ = now + options_.interval;
  }
  if (says) journal_.Warn(absl::StrCat("refused to share memory with a process: ", reason));
  // Sent without waiting. The socket's buffer has space for one message. If it is full, the peer
  // does not read, and the reason can be lost.
  socket.Send(reason, nullptr, MonotonicNow()).IgnoreError();
}

void MemoryExchange::Serve(Connection& connection) {
  FdSocket& socket = connection.socket;
  auto identified = Identify(socket);
  const absl::Status served = identified.ok()
                                  ? ServeMember(socket, *identified->first, identified->second)
                                  : identified.status();
  if (!served.ok()) Refuse(socket, std::string(served.message()));
  socket.Shutdown();
  MutexLock lock(mutex_);
  connection.over = true;
}

absl::Status MemoryExchange::ServeMember(FdSocket& socket, const Job& job, const DataHello& hello) {
  const Key key{&job, hello.incarnation};
  auto memory = std::make_shared<MemberMemory>();
  {
    MutexLock lock(mutex_);
    // The new connection does not replace the first: that would release results that the member
    // is reading.
    if (!members_.emplace(key, memory).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("member ", ToNumber(hello.member), " of job \"", hello.job,
                       "\" already shares memory with this server on another connection"));
    }
  }
  absl::Status sent = socket.Send(kHandoverOk, nullptr, MonotonicNow() + kTimeout);
  while (sent.ok()) {
    absl::StatusOr<FdSocket::Message> request = socket.Receive(absl::InfiniteFuture());
    if (!request.ok()) {
      sent = request.status();
      break;
    }
    absl::StatusOr<FileDescriptor> answer = Answer(job, *memory, *request);
    sent =
        socket.Send(answer.ok() ? kHandoverOk : answer.status().message(),
                    answer.ok() && answer->valid() ? &*answer : nullptr, MonotonicNow() + kTimeout);
  }
  memory->Close();
  MutexLock lock(mutex_);
  members_.erase(key);
  // A member that disconnects is no error.
  return absl::IsInvalidArgument(sent) ? sent : absl::OkStatus();
}

absl::StatusOr<std::pair<std::shared_ptr<Job>, DataHello>> MemoryExchange::Identify(
    FdSocket& socket) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const FdSocket::Message message,
                             socket.Receive(MonotonicNow() + kTimeout));
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(message.text.data()),
                                          message.text.size());
  SYNCGRADS_ASSIGN_OR_RETURN(PushFrame frame, DecodePush({bytes}));
  if (!frame.header.hello.has_value()) {
    return absl::FailedPreconditionError("the first message must be a hello");
  }
  DataHello hello = *std::move(frame.header.hello);
  if (hello.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the worker uses protocol version ",
                                                      hello.protocol_version, ", this server uses ",
                                                      kProtocolVersion));
  }
  std::shared_ptr<Job> job = jobs_.Find(hello.job);
  if (job == nullptr) {
    return absl::UnavailableError(absl::StrCat("no job \"", hello.job, "\" is open here"));
  }
  SYNCGRADS_RETURN_IF_ERROR(job->Admit(hello, options_.credential).status());
  return std::pair{std::move(job), std::move(hello)};
}

absl::StatusOr<FileDescriptor> MemoryExchange::Answer(const Job& job, MemberMemory& memory,
                                                      const FdSocket::Message& message) const {
  const std::optional<HandoverRequest> request = ParseHandover(message.text);
  if (!request.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown request; protocol version ", kProtocolVersion));
  }
  if (request->kind == HandoverRequest::Kind::kResults) {
    const GroupId group{request->number};
    SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor results, job.ShareResults(group));
    memory.SetMapped(group);
    return results;
  }
  if (!message.descriptor.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("region ", request->number, " is offered without a file descriptor"));
  }
  const uint64_t most = options_.max_region_bytes > 0 ? options_.max_region_bytes : MachineMemory();
  const PeerRegion::Limits limits = {
      .bytes = most - std::min(most, memory.region_bytes()),
      .mapped_at_once = kMappedAtOnce + kTimesTheJob * job.MemoryBytes()};
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<const PeerRegion> region,
                             PeerRegion::Map(message.descriptor, limits));
  SYNCGRADS_RETURN_IF_ERROR(memory.Add(request->number, std::move(region)));
  return FileDescriptor();
}

}  // namespace syncgrads::server
