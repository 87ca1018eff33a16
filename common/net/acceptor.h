// Accepts a server's connections, in place of gRPC.
//
// gRPC 1.51 stops accepting for ever once the process has run out of file descriptors
// (CVE-2023-4785). If that happens, an Acceptor closes a descriptor that it keeps in reserve, uses
// the free one to accept and close a connection, and continues. It also closes connections beyond
// the limits of OpenConnections.
//
// A unix socket is for processes of the same user: connections of other users are closed. A TCP
// connection of another user of this host is marked as such, and counted apart.

#ifndef SYNCGRADS_COMMON_NET_ACCEPTOR_H_
#define SYNCGRADS_COMMON_NET_ACCEPTOR_H_

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/line_throttle.h"
#include "common/mutex.h"
#include "common/net/call_flood.h"
#include "common/net/open_connections.h"
#include "common/net/strangers.h"
#include "common/polling.h"
#include "common/serial_thread.h"

namespace syncgrads {

// Has its own threads, from construction to destruction. Created and destroyed by one thread; the
// private functions run on the acceptor's thread. Other functions may be called on any thread.
class Acceptor {
 public:
  // The number of threads that call Take.
  static constexpr size_t kTakers = 4;
  // Receives an accepted, non-blocking connection and its ownership. `is_local`: it comes from a
  // unix socket. `taker`: the number of the calling thread, less than kTakers. The call may take as
  // long as the connection sends: gRPC 1.51 reads and parses on the thread that hands a connection
  // to it, if there is something to read.
  using Take = std::function<void(FileDescriptor connection, bool is_local, size_t taker)>;
  // Logs a line. Called on the acceptor's thread.
  using Warn = std::function<void(const std::string& line)>;

  // Accepts connections from the sockets `listening`, which must be non-blocking, and adds them to
  // `connections`, which must outlive this object. Refused connections are logged, for each kind of
  // refusal at most once every 10 s. TCP connections are added to `strangers`, if it is not null,
  // and the acceptor's thread cuts them. If strangers are more than a sixth of connections.most(),
  // a further one takes the place of an old one. If `calls` has functions, the acceptor's thread
  // looks for floods of calls, too.
  Acceptor(std::vector<FileDescriptor> listening, OpenConnections& connections,
           Strangers* strangers, CallsOfGrpc calls, Warn warn, Take take);
  // Stops listening. Accepted connections stay open, except those that are still being taken after
  // a second: they are reset.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  // A thread that calls `take_`.
  struct Taker {
    std::atomic<bool> busy{false};
    absl::Time busy_since;  // used by the acceptor's thread only
    Mutex mutex;
    // A copy of the descriptor of the connection that it takes, to reset that by.
    FileDescriptor copy ABSL_GUARDED_BY(mutex);
    SerialThread thread;
  };
  enum class Accepted {
    kOne,     // one connection was accepted or refused
    kNone,    // no connection was pending
    kNotYet,  // a connection is still pending and cannot be accepted now: retry after a backoff
  };

  void Run();
  // Null: all are busy.
  Taker* IdleTaker();
  // Accepts a connection, or none if all takers are busy.
  Accepted AcceptFrom(const FileDescriptor& listening);
  // Accepts a connection with the reserved descriptor and closes it.
  Accepted RefuseFrom(const FileDescriptor& listening);
  // Passes a connection to an idle taker; `copy` is a copy of its descriptor.
  void TakeIn(FileDescriptor connection, FileDescriptor copy, bool is_local);
  // Returns the user of a TCP connection from or to a loopback address, if that is neither root nor
  // this process's user; kUnknownUser if the kernel does not name it.
  std::optional<unsigned> OtherUserOf(const FileDescriptor& connection,
                                      const sockaddr_storage& address);
  // Adds the connection to the strangers. Returns false if there is no descriptor for that.
  bool AddStranger(const FileDescriptor& connection, const std::string& endpoint,
                   const std::string& peer, std::optional<unsigned> other_user);
  // Each of them returns the timeout of the next poll.
  int CutStrangers();
  int CutFloods();
  // If all takers are busy, cuts the connections that have kept theirs for kMostWhileOthersWait.
  int CutEndless();
  void NoteRefusal(const std::string& kind, const std::string& why);
  void NoteCut(const std::string& kind, const std::string& which);

  const std::vector<FileDescriptor> listening_;
  OpenConnections& connections_;
  Strangers* const strangers_;
  const Warn warn_;
  const Take take_;
  StopEvent stop_;

  // Used by the acceptor's thread only.
  FileDescriptor reserve_;
  absl::Time looked_at_strangers_ = absl::InfinitePast();
  std::optional<CallFlood> flood_;
  absl::Time looked_at_calls_ = absl::InfinitePast();
  LineThrottle refusals_;

  // They call `take_`, so that a connection that sends without a pause delays neither the acceptor,
  // which cuts it, nor further connections. If all are busy, further connections wait in the
  // kernel.
  std::array<Taker, kTakers> takers_;
  // An eventfd, which is set when a taker is idle again.
  FileDescriptor taker_is_idle_;
  std::thread thread_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_ACCEPTOR_H_
