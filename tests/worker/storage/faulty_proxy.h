// A TCP proxy in front of an HTTP server. It makes connections fail as tests request.

#ifndef SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_
#define SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace syncgrads {

// The fault of one connection.
struct Fault {
  enum Kind {
    kNone,
    kBusy,      // the first request is answered with "503 Slow Down"
    kBusyOnce,  // the same, unless a connection with this fault has refused this request before
    kCut,       // the connection is broken after `bytes` bytes of answers
  };
  Kind kind = kNone;
  size_t bytes = 0;
};

// Each connection is served on a thread of the proxy. The destructor breaks all connections.
// Thread-safe.
class FaultyProxy {
 public:
  // Forwards connections to `server_port` on this machine.
  explicit FaultyProxy(int server_port);
  ~FaultyProxy();

  int port() const { return port_; }
  // Sets the faults of the next connections, in order. Later connections have no fault.
  void Inject(std::deque<Fault> faults);
  // Returns the number of connections accepted so far.
  int connections() const;

 private:
  void Accept();
  void Serve(int client, Fault fault);
  // Returns whether this is the first call for requests with this first line.
  bool IsNew(absl::string_view request);
  // Connects to the server, sends `request` and then pumps up to `most` bytes of answers.
  void Forward(int client, absl::string_view request, size_t most);

  const int server_port_;
  int listener_ = -1;
  int port_ = 0;
  mutable Mutex mutex_;
  std::deque<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> refused_once_ ABSL_GUARDED_BY(mutex_);  // first lines of requests
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
  // All accepted sockets. The destructor shuts them down and closes them.
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> servers_;  // started by the thread of Accept
  std::thread acceptor_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_
