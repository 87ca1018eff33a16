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
#include "common/local/message_socket.h"
#include "common/mutex.h"
#include "common/shm/pages.h"

namespace syncgrads {

// Its threads take turns: each of them waits for all sockets, and handles one. Thread-safe.
class SocketLoop {
 public:
  // Starts `threads` threads, at least one. `tick` is the time between two looks at servers that do
  // not answer: after 5, a client's end whose server is not ready is closed; after 10, a server
  // that sends nothing is sent a ping; and after 10 more, the client's end is closed. `lease`: see
  // Poll.
  //
  // Errors:
  //   ResourceExhausted  the system has no threads or descriptors for it
  static absl::StatusOr<std::unique_ptr<SocketLoop>> Start(
      size_t threads, absl::Duration tick = absl::Seconds(1),
      absl::Duration lease = absl::Milliseconds(5));
  // Cancels the sockets that are open, and waits until they are closed. Not to be called on one of
  // its threads.
  ~SocketLoop();
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Reads and writes on this thread what is ready, until `is_done` returns true or a moment has
  // passed. A thread that waits for a message thus gets it without another thread being woken, and
  // its processor does not sleep meanwhile. While another thread wants the processor, it has it.
  // The first messages of streams, and OnClosed, are left to the loop.
  //
  // While each call follows the one before within `lease`, and ends because of `is_done`, what
  // arrives between them is left to the next call: to wake a thread of the loop would cost the
  // other end more than the message. If no call comes in time, the loop reads it.
  void Poll(absl::FunctionRef<bool()> is_done);

  // Runs `closure` on one of the threads. Not to be called while the loop is being destroyed.
  void Run(std::function<void()> closure);

 private:
  friend class MessageSocket;

  SocketLoop(absl::Duration tick, absl::Duration lease) : tick_(tick), lease_(lease) {}

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
  // Returns whether a lease follows a call of Poll.
  bool NotePoll(bool is_done, absl::Time begin, absl::Time end);
  // Extends the lease that the last call of Poll has begun. Returns false if there is none.
  bool ExtendLease();
  // To be called after sockets have been leased: otherwise their leases might never end.
  void LeaseUntil(absl::Time end);
  // Called by the loop at `next_look_`. Ends the lease if it is over; otherwise reads what calls of
  // Poll, which end when they have what they wait for, have not read.
  void LookAtLease();
  // Runs what was passed to Run. Returns false if this thread is to end.
  bool RunClosures();
  void Wake();

  const absl::Duration tick_;
  const absl::Duration lease_;
  FileDescriptor epoll_;
  FileDescriptor wake_;  // an eventfd
  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::shared_ptr<MessageSocket>> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> closures_ ABSL_GUARDED_BY(mutex_);
  // When the last call of Poll ended that was done, or InfinitePast if a later one was not.
  absl::Time last_done_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time lease_end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // In the future as long as a socket may be leased.
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // The last call of Poll has begun or extended a lease that has not ended.
  bool is_leased_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LOCAL_SOCKET_LOOP_H_
