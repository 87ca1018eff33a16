// Exchanges file descriptors of shared memory with the workers on this host; see
// common/shm/handover.h for the protocol.
//
// It listens on an abstract unix socket, and has one thread for each connection. A process is
// accepted as a member if it runs as the same user as this server and sends the member's hello. A
// member has one connection at a time; a second one is refused.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_MEMORY_EXCHANGE_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_MEMORY_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/shm/fd_socket.h"
#include "common/wire/frame.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/journal.h"
#include "server/service/data/member_memory.h"

namespace syncgrads::server {

struct MemoryExchangeOptions {
  // The maximum number of connections, each of which has a thread. Further connections are refused
  // with a reason.
  size_t max_connections = 256;
  // The interval at which connections that have ended are removed. Also the backoff if the process
  // has no descriptors or memory to accept a connection, and the minimum time between log lines
  // about refusals.
  absl::Duration interval = absl::Seconds(1);
  // The maximum size of all regions of one member; 0: the memory of the machine. A member has no
  // more memory to share, but could hand over one region again and again.
  uint64_t max_region_bytes = 0;
  // What a worker needs to share memory.
  StreamCredential credential = StreamCredential::kSecretOrToken;
};

// Owned by the server. Thread-safe.
class MemoryExchange {
 public:
  // Listens on a new socket and starts to accept connections. `jobs` and `journal` must outlive
  // this object.
  //
  // Errors:
  //   ResourceExhausted  the system has no thread for it
  //   others             those of FdListener::Listen
  static absl::StatusOr<std::unique_ptr<MemoryExchange>> Start(const Jobs& jobs, Journal& journal,
                                                               MemoryExchangeOptions options = {});
  // Closes all connections and waits for their threads.
  ~MemoryExchange();

  // The name of the abstract unix socket on which memory is handed over.
  const std::string& address() const { return address_; }

  // Returns the memory that the member shares; null if it has no connection. `hello` must have
  // been admitted by `job`.
  std::shared_ptr<MemberMemory> MemoryOf(const Job& job, const DataHello& hello) const;

 private:
  // A worker's connection. Used by its thread; removed by Reap after the thread has set `over`.
  struct Connection {
    explicit Connection(FdSocket accepted) : socket(std::move(accepted)) {}
    FdSocket socket;
    std::thread thread;
    bool over = false;  // guarded by `mutex_`
  };

  using Key = std::pair<const Job*, Incarnation>;

  MemoryExchange(FdListener listener, std::string address, const Jobs& jobs, Journal& journal,
                 MemoryExchangeOptions options);

  // Runs on the acceptor thread until this object is destroyed or the listener fails.
  void AcceptAll();
  // Joins the threads of connections that have ended, and removes the connections.
  void Reap();
  // Returns PermissionDenied if the process at the other end runs as another user than this server.
  static absl::Status CheckUser(const FdSocket& socket);
  // Starts a thread for the connection, or refuses it.
  void Take(FdSocket accepted);
  // Sends the peer the reason of a refusal, and logs it.
  void Refuse(FdSocket& socket, const std::string& reason);
  // Waits for the interval; returns earlier if this object is being destroyed.
  void BackOff();
  bool stopping() const;

  void Serve(Connection& connection);
  // Answers the member's requests until the connection ends. OK if the member disconnects.
  //
  // Errors:
  //   AlreadyExists    the member has another connection
  //   InvalidArgument  a message is too long or has more than one descriptor
  absl::Status ServeMember(FdSocket& socket, const Job& job, const DataHello& hello);
  // Receives the first message, the hello, and admits the member.
  absl::StatusOr<std::pair<std::shared_ptr<Job>, DataHello>> Identify(FdSocket& socket) const;
  // Handles one request. Returns the descriptor to send with the answer, if there is one.
  absl::StatusOr<FileDescriptor> Answer(const Job& job, MemberMemory& memory,
                                        const FdSocket::Message& request) const;

  FdListener listener_;
  const std::string address_;
  const Jobs& jobs_;
  Journal& journal_;
  const MemoryExchangeOptions options_;

  mutable Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Changed only by the acceptor thread, and under the mutex.
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<MemberMemory>> members_ ABSL_GUARDED_BY(mutex_);
  // The earliest time for the next log line about a refusal: at most one line in an interval.
  absl::Time next_line_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Last, since the thread uses all other members.
  std::thread acceptor_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_MEMORY_EXCHANGE_H_
