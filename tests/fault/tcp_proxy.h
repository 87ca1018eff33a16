// A TCP proxy in the test's process that can disturb connections.

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

// How the connections of one client are disturbed. Both directions are treated alike.
struct LinkState {
  // Open connections break, and new ones break at once.
  bool cut = false;
  // No bytes pass and no connection breaks, as if packets were lost. Bytes that were sent arrive
  // when the fault is over.
  bool black_hole = false;
  // The time between the arrival of a byte and its departure.
  absl::Duration delay;
  int64_t bytes_per_second = 0;  // 0: no limit
};

// Forwards connections from its own port to another port of this machine.
//
// Thread-safe. One thread of its own does the forwarding.
class TcpProxy {
 public:
  // Returns the client that a connection belongs to, given the client's port. Called on the proxy's
  // thread.
  using ClientOfPort = std::function<int(uint16_t port)>;

  // Returns Unavailable if the proxy cannot listen.
  static absl::StatusOr<std::unique_ptr<TcpProxy>> Start(ClientOfPort client_of_port);
  // Breaks all connections.
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  uint16_t port() const { return port_; }
  // Sets the port that new connections are forwarded to. Before the first call, connections break.
  void SetUpstream(uint16_t port);
  // Sets the state of the connections of `client`. Once this has returned, no byte passes in the
  // previous state.
  void SetLink(int client, const LinkState& state);
  // The number of bytes forwarded so far, in both directions.
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
    // Throttling: the number of bytes that may be sent, as computed at the time `counted`.
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
  // Adds the descriptors of the pipe that the thread has to wait for, and reduces `wake` to the
  // latest time at which the thread has to continue.
  void Prepare(const LinkState& link, Pipe& pipe, absl::Time now, absl::Time& wake);
  void Move(const LinkState& link, Connection& connection, Pipe& pipe);
  // Returns false if the connection is broken.
  static bool Receive(const LinkState& link, Pipe& pipe);
  bool Send(const LinkState& link, Pipe& pipe);
  LinkState LinkOf(int client) const;
  // mutex_ must be held.
  LinkState LinkOfLocked(int client) const;

  const int listener_;
  const int wake_;
  const uint16_t port_;
  const ClientOfPort client_of_port_;
  std::atomic<uint64_t> passed_bytes_{0};

  mutable std::mutex mutex_;
  bool stopped_ = false;            // guarded by mutex_
  uint16_t upstream_ = 0;           // guarded by mutex_
  std::map<int, LinkState> links_;  // guarded by mutex_

  std::list<Connection> connections_;  // used only by the proxy's thread
  std::vector<pollfd> waits_;          // used only by the proxy's thread
  std::thread thread_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_TCP_PROXY_H_
