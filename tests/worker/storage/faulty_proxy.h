// A TCP proxy before an HTTP server, which makes connections fail as it is told.

#ifndef SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_
#define SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads {

// What becomes of one connection.
struct Fault {
  enum Kind {
    kNone,
    kBusy,  // the first request is answered "503 Slow Down"
    kCut,   // broken after so many bytes of answers
  };
  Kind kind = kNone;
  size_t bytes = 0;
};

// Thread-safe.
class FaultyProxy {
 public:
  // Passes connections on to `server_port` of this machine.
  explicit FaultyProxy(int server_port);
  ~FaultyProxy();

  int port() const { return port_; }
  // What becomes of the next connections, in turn; none are faulty afterwards.
  void Inject(std::deque<Fault> faults);
  // Connections accepted so far.
  int connections() const;

 private:
  void Accept();
  void Serve(int client, Fault fault);

  const int server_port_;
  int listener_ = -1;
  int port_ = 0;
  mutable Mutex mutex_;
  std::deque<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
  // Open ones, to be broken at the end.
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> servers_;  // of Accept's thread
  std::thread acceptor_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_STORAGE_FAULTY_PROXY_H_
