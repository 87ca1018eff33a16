// Hands memory over between this server and the workers on its host.
//
// Listens on an abstract unix socket, with a thread for each worker that
// connects. Who says the hello of a member, and runs as the same user as this
// server, is taken for that member.

#ifndef SYNCGRADS_SERVER_SERVICE_MEMORY_EXCHANGE_H_
#define SYNCGRADS_SERVER_SERVICE_MEMORY_EXCHANGE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/shm/fd_socket.h"
#include "common/wire/frame.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/service/member_memory.h"

namespace syncgrads::server {

// Thread-safe.
class MemoryExchange {
 public:
  // Both must outlive this object.
  //
  // Errors: as FdListener::Listen
  static absl::StatusOr<std::unique_ptr<MemoryExchange>> Start(const Jobs& jobs, Journal& journal);
  ~MemoryExchange();

  // The abstract unix socket at which memory is handed over.
  const std::string& address() const { return address_; }

  // What the member has shared; null if nothing. `hello` has been admitted.
  std::shared_ptr<MemberMemory> MemoryOf(const Job& job, const DataHello& hello) const;

 private:
  // A worker's connection; gone when the thread has ended.
  struct Connection {
    explicit Connection(FdSocket accepted) : socket(std::move(accepted)) {}
    FdSocket socket;
    std::thread thread;
    bool over = false;
  };
  using Key = std::pair<const Job*, Incarnation>;

  MemoryExchange(FdListener listener, std::string address, const Jobs& jobs, Journal& journal);

  void AcceptAll();
  void Serve(Connection& connection);
  // The first message: who it is.
  absl::StatusOr<std::pair<std::shared_ptr<Job>, DataHello>> Identify(FdSocket& socket) const;
  absl::StatusOr<FileDescriptor> Answer(const Job& job, MemberMemory& memory,
                                        const FdSocket::Message& request) const;

  FdListener listener_;
  const std::string address_;
  const Jobs& jobs_;
  Journal& journal_;
  std::thread acceptor_;

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<MemberMemory>> members_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_MEMORY_EXCHANGE_H_
