// The threads that wait for local streams.

#ifndef SYNCGRADS_COMMON_LOCAL_SOCKET_LOOP_H_
#define SYNCGRADS_COMMON_LOCAL_SOCKET_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"
#include "common/local/message_socket.h"
#include "common/mutex.h"

namespace syncgrads {

// Its threads take turns: each of them waits for all sockets, and handles one. Thread-safe.
class SocketLoop {
 public:
  // Starts `threads` threads, at least one. `tick` is the time between two looks at peers that do
  // not answer: after 5, a client's end whose server is not ready is closed; after 10, a server
  // that sends nothing is sent a ping; and after 10 more, the client's end is closed. After 30, a
  // server's end is closed whose client has sent only a part of a message.
  //
  // Errors:
  //   ResourceExhausted  the system has no threads or descriptors for it
  static absl::StatusOr<std::unique_ptr<SocketLoop>> Start(size_t threads,
                                                           absl::Duration tick = absl::Seconds(1));
  // Cancels the sockets that are open, and waits until they are closed. Not to be called on one of
  // its threads.
  ~SocketLoop();
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Reads and writes on this thread what is ready, until `is_done` returns true or a moment has
  // passed. A thread that waits for a message thus gets it without another thread being woken, and
  // its processor does not sleep meanwhile. While another thread wants the processor, it has it.
  // The first messages of streams, and OnClosed, are left to the loop.
  void Poll(absl::FunctionRef<bool()> is_done);

  // Runs `closure` on one of the threads. Not to be called while the loop is being destroyed.
  void Run(std::function<void()> closure);

 private:
  friend class MessageSocket;

  explicit SocketLoop(absl::Duration tick) : tick_(tick) {}

  // Returns the number of a new socket.
  uint64_t NewNumber();
  void Add(uint64_t number, int descriptor, std::shared_ptr<MessageSocket> socket);
  std::vector<std::shared_ptr<MessageSocket>> Sockets();
  // Calls MessageSocket::Handle once, when one of the events of epoll occurs.
  void Arm(uint64_t number, int descriptor, uint32_t events);
  void Remove(uint64_t number, int descriptor);

  // `ticks`: this thread calls MessageSocket::Tick.
  void Loop(bool ticks);
  void Tick();
  // Runs what was passed to Run. Returns false if this thread is to end.
  bool RunClosures();
  void Wake();

  const absl::Duration tick_;
  FileDescriptor epoll_;
  FileDescriptor wake_;  // an eventfd
  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::shared_ptr<MessageSocket>> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> closures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LOCAL_SOCKET_LOOP_H_
