// Notices that a server does not answer any more: connects to the server's port, from time to time,
// as a client would.

#ifndef SYNCGRADS_SERVER_WATCHDOG_H_
#define SYNCGRADS_SERVER_WATCHDOG_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/polling.h"

namespace syncgrads::server {

struct WatchdogOptions {
  // The address that the server listens on. The addresses that mean all addresses are those of this
  // host.
  HostPort address;
  // The interval of the connections, and how long each of them waits for an answer.
  absl::Duration interval = absl::Seconds(10);
  // The server is silent if this many connections, one after the other, got no answer. There are
  // several, because a process that was paused finds the time of one connection over when it
  // continues.
  int attempts = 6;
};

// An answer is any byte, or the end of the connection: a server with too many connections answers
// too. Nothing is sent, so a server with TLS sees a connection that ends before its handshake.
class Watchdog {
 public:
  // `answered` is called after each answer. `silent` is called once, with a text for the log, when
  // the server is silent; then the watchdog ends. Both are called on the watchdog's thread.
  Watchdog(WatchdogOptions options, std::function<void()> answered,
           std::function<void(const std::string&)> silent);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();
  // Whether the server answers a connection within the interval. Also true if this process cannot
  // make one, for example because the network is down, which says nothing about the server.
  bool Answers() const;
  // Waits for an event of `descriptor` until `deadline`, or until the watchdog has to stop. Returns
  // whether the event has come. -1 waits for the deadline only.
  bool Await(int descriptor, short events, absl::Time deadline) const;

  const WatchdogOptions options_;
  const std::function<void()> answered_;
  const std::function<void(const std::string&)> silent_;
  StopEvent stop_;
  std::thread thread_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_WATCHDOG_H_
