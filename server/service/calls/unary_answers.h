// Limits the number of large answers that have not been read.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_UNARY_ANSWERS_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_UNARY_ANSWERS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/service/calls/counts_by_name.h"
#include "server/service/calls/request_call.h"

namespace syncgrads::server {

// gRPC holds an answer until its caller has read it. Thread-safe.
class UnaryAnswers {
 public:
  // The maximum number of answers at a time: of all networks, and of one (NetworkOf).
  static constexpr size_t kMaxAnswers = 64;
  static constexpr size_t kMaxAnswersOfNetwork = 16;

  // Counts the answer of `call`, whose caller has the address `peer`, until the call is over. All
  // calls must be over before this object is destroyed.
  //
  // Errors:
  //   ResourceExhausted  too many answers have not been read
  absl::Status Count(RequestCall& call, const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Place;

  absl::Status Begin(const std::string& network) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(const std::string& network) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  // The number of calls: in all, and of each network.
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  CountsByName calls_of_network_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_UNARY_ANSWERS_H_
