// Answers unary calls whose answers may be large.

#ifndef SYNCGRADS_SERVER_SERVICE_UNARY_ANSWERS_H_
#define SYNCGRADS_SERVER_SERVICE_UNARY_ANSWERS_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/service/counts_by_name.h"
#include "server/service/stream_deadlines.h"

namespace syncgrads::server {

// gRPC holds an answer until its caller has read it. So the number of answers that have not been
// read is limited, and a call whose answer is not read in time is cancelled. Thread-safe.
class UnaryAnswers {
 public:
  // The maximum number of answers at a time: of all networks, and of one (NetworkOf).
  static constexpr size_t kMaxAnswers = 64;
  static constexpr size_t kMaxAnswersOfNetwork = 16;

  // `deadlines` must outlive this object. It has the time that a caller has to read its answer.
  explicit UnaryAnswers(StreamDeadlines& deadlines) : deadlines_(deadlines) {}

  // Calls `fill`, which fills the reply and returns the status of the call, and answers the call.
  // If too many answers have not been read, it does not call `fill`, and the call ends with
  // ResourceExhausted. `peer` is the caller's address. All calls must have ended before this object
  // is destroyed.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const std::string& peer,
                                   absl::FunctionRef<absl::Status()> fill);

 private:
  class Call;

  // Counts a call. Errors: ResourceExhausted.
  absl::Status Begin(const std::string& network) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(const std::string& network) ABSL_LOCKS_EXCLUDED(mutex_);

  StreamDeadlines& deadlines_;

  Mutex mutex_;
  // The number of calls: in all, and of each network.
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  CountsByName calls_of_network_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_UNARY_ANSWERS_H_
