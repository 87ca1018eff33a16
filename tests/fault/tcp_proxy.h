// A TCP relay of one process, that can do to connections what networks do.

#ifndef SYNCGRADS_TESTS_FAULT_TCP_PROXY_H_
#define SYNCGRADS_TESTS_FAULT_TCP_PROXY_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncgrads::fault {

// What becomes of the connections of one client; both directions alike.
struct LinkState {
  // Those that there are break, and new ones break at once.
  bool cut = false;
  // Nothing gets through, and nothing breaks: as if packets were lost. What was sent
  // arrives when it is over.
  bool black_hole = false;
  // Between the arrival of a byte and its departure.
  absl::Duration delay;
  int64_t bytes_per_second = 0;  // 0: no limit
};

// Passes connections to its own port on to another port of this machine.
//
// Thread-safe; one thread of its own does the work.
class TcpProxy {
 public:
  // Says which client a connection is of, by the port on its side; called on the
  // proxy's thread.
  using ClientOfPort = std::function<int(uint16_t port)>;

  // Unavailable if there is no port to listen on.
  static absl::StatusOr<std::unique_ptr<TcpProxy>> Start(ClientOfPort client_of_port);
  // Breaks all connections.
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  uint16_t port() const { return port_; }
  // Where connections go from now on; before it is called, they break.
  void SetUpstream(uint16_t port);
  void SetLink(int client, const LinkState& state);
  // That it has passed on so far, in both directions.
  uint64_t passed_bytes() const { return passed_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Block {
    absl::Time due;
    std::string bytes;
    size_t sent = 0;
  };
  // One direction of a connection.
  struct Pipe {
    int from = -1;
    int to = -1;
    std::deque<Block> blocks;
    size_t buffered = 0;
    bool from_ended = false;
    bool to_ended = false;
    // What a throttled pipe may send, and up to when that has been worked out.
    double allowance = 0;
    absl::Time counted;
  };
  struct Connection {
    int client = -1;
    Pipe up, down;
    bool broken = false;
  };

  TcpProxy(int listener, uint16_t port, ClientOfPort client_of_port);
  void Run();
  void Accept();
  // Which of the pipe's descriptors to wait for, and until when at most.
  void Prepare(const LinkState& link, Pipe& pipe, absl::Time now, absl::Time& wake);
  void Move(const LinkState& link, Connection& connection, Pipe& pipe);
  // False: the connection is broken.
  static bool Receive(const LinkState& link, Pipe& pipe);
  bool Send(const LinkState& link, Pipe& pipe);
  LinkState LinkOf(int client) const;

  const int listener_;
  const int wake_;
  const uint16_t port_;
  const ClientOfPort client_of_port_;
  std::atomic<uint64_t> passed_bytes_{0};

  mutable std::mutex mutex_;
  bool stopped_ = false;            // guarded by mutex_
  uint16_t upstream_ = 0;           // guarded by mutex_
  std::map<int, LinkState> links_;  // guarded by mutex_

  std::list<Connection> connections_;  // of the thread
  std::vector<pollfd> waits_;          // of the thread
  std::thread thread_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_TCP_PROXY_H_
