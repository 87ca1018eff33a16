// Redirects gRPC's own log lines.

#ifndef SYNCGRADS_THIRD_PARTY_GRPC_LOG_H_
#define SYNCGRADS_THIRD_PARTY_GRPC_LOG_H_

#include <functional>
#include <string>

#include "common/clock.h"

namespace syncgrads {

// While this object exists, gRPC's log lines are passed to a function. By default they are written
// to stderr, which may block gRPC's threads. A process may have at most one such object at a time.
//
// Of the lines that one place in gRPC's sources logs, one is passed on in ten seconds, with the
// number of the others: a peer may cause a line with each connection.
class GrpcLog {
 public:
  // `write` may be called on any thread, also on several at a time, and must not block.
  explicit GrpcLog(std::function<void(const std::string& line)> write,
                   const Clock& clock = Clock::Real());
  // Waits for calls of `write` that are in progress. After that, `write` is not called any more.
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_LOG_H_
