// Ends connections that begin calls faster than the server can end them.
//
// HTTP/2 limits the calls of a connection that are open. A call that its peer resets at once is not
// open any more, while gRPC 1.51 has still to hand it to our code and to take it back, which takes
// longer than to parse it: whoever may call anything could fill the memory with such calls
// (CVE-2023-44487). They show as calls that gRPC has begun and our code does not know of.

#ifndef SYNCGRADS_COMMON_NET_CALL_FLOOD_H_
#define SYNCGRADS_COMMON_NET_CALL_FLOOD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/net/open_connections.h"

namespace syncgrads {

// What gRPC counts; see CallsOfNewestServer (common/rpc/call_counts.h).
struct CallsOfGrpc {
  // Returns the number of calls that have begun and not ended.
  std::function<int64_t()> open;
  // Returns how many calls have begun on each connection, by its endpoint.
  std::function<std::map<std::string, int64_t>()> begun;
};

// Used by one thread.
class CallFlood {
 public:
  // How many calls may wait until our code learns of them, of all connections together. Each takes
  // up to 17 KiB.
  static constexpr int64_t kMostWaiting = 2000;
  // A connection that has begun fewer calls between two looks is not reset: a member may open 64
  // streams at once. If so many calls wait that memory is at stake, even few are too many.
  static constexpr int64_t kLeastBegun = 100;
  static constexpr int64_t kManyWaiting = 10'000, kLeastBegunThen = 4;

  // `connections` must outlive this object.
  CallFlood(CallsOfGrpc calls, OpenConnections& connections);

  // To be called every 10 ms, and less often while !is_flooded(). If more calls wait than
  // may, and more than at the last look, resets the connections that have begun most of those since
  // then. Returns a text about each, for the log.
  std::vector<std::string> Look();
  // Whether more calls wait than may.
  bool is_flooded() const { return waiting_ > kMostWaiting; }

 private:
  const CallsOfGrpc calls_;
  OpenConnections& connections_;
  // At the last look. The calls that had begun on each connection; empty if there was no flood.
  int64_t waiting_ = 0;
  std::map<std::string, int64_t> begun_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_CALL_FLOOD_H_
