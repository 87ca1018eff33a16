// The threads that handle the messages of workers to the control plane, and the ends of their
// streams. gRPC's threads, of which there may be one only, serve the data plane of all jobs
// meanwhile: to admit the workers of a thousand jobs takes some 0.3 s, to end them 0.1 s, and to
// parse a registration of 100,000 tensors some 10 ms.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_CONTROL_THREADS_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_CONTROL_THREADS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "common/serial_thread.h"
#include "common/turn_queue.h"

namespace syncgrads::server {

// From this size on a message is large.
inline constexpr size_t kLargeMessageBytes = size_t{128} << 10;

// What kind of message it is. Each kind has a thread of its own, so that heartbeats do not wait for
// registrations, nor these for messages that take long to parse.
enum class MessageWeight { kLight, kRegistration, kLarge };

// Thread-safe. The ControlService owns it; its streams use it. A stream has one message here at a
// time: it reads no other one meanwhile. The streams of a job, and those of a network that have
// not joined a job, share turns: a job with thousands of streams delays those of another one by at
// most a message of each job and network.
class ControlThreads {
 public:
  // Queues `handle`, which handles a message of a stream that shares the turns of `owner`.
  void Handle(MessageWeight weight, const std::string& owner, std::function<void()> handle);
  // Queues `end`, which handles the end of a stream, in the order of the light messages. The caller
  // has waited until the stream's last message was handled.
  void End(const std::string& owner, std::function<void()> end);

  // The number of messages of a kind that wait for its thread or are being handled there.
  size_t waiting(MessageWeight weight) const { return kinds_[static_cast<size_t>(weight)].waiting; }

 private:
  class Kind {
   public:
    void Run(const std::string& owner, std::function<void()> closure);

    std::atomic<size_t> waiting{0};

   private:
    Mutex mutex_;
    TurnQueue<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
    SerialThread thread_;  // destroyed first: it uses the queue
  };
  Kind& Of(MessageWeight weight) { return kinds_[static_cast<size_t>(weight)]; }

  std::array<Kind, 3> kinds_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_CONTROL_THREADS_H_
