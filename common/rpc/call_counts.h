// The calls of a gRPC server by gRPC's own count (channelz).
//
// A call counts from the moment when its headers have been parsed, which may be long before our
// code learns of it: gRPC 1.51 parses what has arrived on a connection before it hands on any call.

#ifndef SYNCGRADS_COMMON_RPC_CALL_COUNTS_H_
#define SYNCGRADS_COMMON_RPC_CALL_COUNTS_H_

#include "common/net/call_flood.h"

namespace syncgrads {

// Returns the counts of the server of this process that was started last; no other one may be
// started at the same time. To count the calls that have begun takes about 20 us for each
// connection. After the server's end, and if gRPC does not count, all numbers are 0.
CallsOfGrpc CallsOfNewestServer();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_CALL_COUNTS_H_
