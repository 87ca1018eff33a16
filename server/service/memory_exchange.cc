#include "server/service/memory_exchange.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/protocol.h"
#include "common/shm/handover.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

// For a worker to take an answer, or to say who it is.
constexpr absl::Duration kPatience = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryExchange>> MemoryExchange::Start(const Jobs& jobs,
                                                                      Journal& journal) {
  std::random_device device;
  std::string address =
      absl::StrCat("syncgrads-", getpid(), "-", absl::Hex(uint64_t{device()} << 32 | device()));
  SYNCGRADS_ASSIGN_OR_RETURN(FdListener listener, FdListener::Listen(address));
  return std::unique_ptr<MemoryExchange>(
      new MemoryExchange(std::move(listener), std::move(address), jobs, journal));
}

MemoryExchange::MemoryExchange(FdListener listener, std::string address, const Jobs& jobs,
                               Journal& journal)
    : listener_(std::move(listener)),
      address_(std::move(address)),
      jobs_(jobs),
      journal_(journal),
      acceptor_([this] { AcceptAll(); }) {}

MemoryExchange::~MemoryExchange() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (Connection& connection : connections_) connection.socket.Shutdown();
  }
  listener_.Shutdown();
  acceptor_.join();
  // No connection is added or removed any more.
  for (Connection& connection : connections_) connection.thread.join();
}

std::shared_ptr<MemberMemory> MemoryExchange::MemoryOf(const Job& job,
                                                       const DataHello& hello) const {
  MutexLock lock(mutex_);
  const auto member = members_.find({&job, hello.incarnation});
  return member == members_.end() ? nullptr : member->second;
}

void MemoryExchange::AcceptAll() {
  while (true) {
    absl::StatusOr<FdSocket> accepted = listener_.Accept();
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (!accepted.ok()) {
      journal_.Warn(absl::StrCat("no more memory is shared: ", accepted.status().message()));
      return;
    }
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (!connection->over) {
        ++connection;
        continue;
      }
      connection->thread.join();
      connection = connections_.erase(connection);
    }
    Connection& connection = connections_.emplace_back(*std::move(accepted));
    connection.thread = std::thread([this, &connection] { Serve(connection); });
  }
}

void MemoryExchange::Serve(Connection& connection) {
  FdSocket& socket = connection.socket;
  auto identified = Identify(socket);
  if (identified.ok()) {
    const auto& [job, hello] = *identified;
    const Key key{job.get(), hello.incarnation};
    auto memory = std::make_shared<MemberMemory>();
    {
      MutexLock lock(mutex_);
      members_[key] = memory;
    }
    absl::Status sent = socket.Send(kHandoverOk, nullptr, absl::Now() + kPatience);
    while (sent.ok()) {
      absl::StatusOr<FdSocket::Message> request = socket.Receive(absl::InfiniteFuture());
      if (!request.ok()) break;
      absl::StatusOr<FileDescriptor> answer = Answer(*job, *memory, *request);
      sent =
          socket.Send(answer.ok() ? kHandoverOk : answer.status().message(),
                      answer.ok() && answer->valid() ? &*answer : nullptr, absl::Now() + kPatience);
    }
    memory->Close();
    MutexLock lock(mutex_);
    const auto member = members_.find(key);
    if (member != members_.end() && member->second == memory) members_.erase(member);
  } else {
    journal_.Warn(absl::StrCat("shares no memory with who asked: ", identified.status().message()));
    // Whether it gets this does not matter any more.
    socket.Send(identified.status().message(), nullptr, absl::Now() + kPatience).IgnoreError();
  }
  socket.Shutdown();
  MutexLock lock(mutex_);
  connection.over = true;
}

absl::StatusOr<std::pair<std::shared_ptr<Job>, DataHello>> MemoryExchange::Identify(
    FdSocket& socket) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const unsigned user, socket.PeerUser());
  if (user != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("the worker runs as user ", user,
                                                    ", this server as ", geteuid(),
                                                    "; memory is not shared"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const FdSocket::Message message,
                             socket.Receive(absl::Now() + kPatience));
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(message.text.data()),
                                          message.text.size());
  SYNCGRADS_ASSIGN_OR_RETURN(PushFrame frame, DecodePush({bytes}));
  if (!frame.header.hello.has_value()) {
    return absl::FailedPreconditionError("the first message must be a hello");
  }
  DataHello hello = *std::move(frame.header.hello);
  if (hello.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the worker speaks protocol version ",
                                                      hello.protocol_version,
                                                      ", this server speaks ", kProtocolVersion));
  }
  std::shared_ptr<Job> job = jobs_.Find(hello.job);
  if (job == nullptr) {
    return absl::UnavailableError(absl::StrCat("no job \"", hello.job, "\" is open here"));
  }
  SYNCGRADS_RETURN_IF_ERROR(job->Admit(hello).status());
  return std::pair{std::move(job), std::move(hello)};
}

absl::StatusOr<FileDescriptor> MemoryExchange::Answer(const Job& job, MemberMemory& memory,
                                                      const FdSocket::Message& message) const {
  const std::optional<HandoverRequest> request = ParseHandover(message.text);
  if (!request.has_value()) {
    return absl::InvalidArgumentError("a request that protocol version 1 does not know");
  }
  if (request->kind == HandoverRequest::Kind::kResults) {
    const GroupId group{request->number};
    SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor results, job.ShareResults(group));
    memory.SetMapped(group);
    return results;
  }
  if (!message.descriptor.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("region ", request->number, " is offered without a descriptor"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<const PeerRegion> region,
                             PeerRegion::Map(message.descriptor));
  memory.Add(request->number, std::move(region));
  return FileDescriptor();
}

}  // namespace syncgrads::server
