// Conversions between recorded events and the messages of proto/trace.proto.

#ifndef SYNCGRADS_COMMON_CONTRACT_TRACE_H_
#define SYNCGRADS_COMMON_CONTRACT_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/trace/trace_event.h"
#include "proto/trace.pb.h"

namespace syncgrads {

// The maximum number of events of a part: parsing it takes a thread of gRPC less than 1 ms. If a
// worker has to connect again, a part is the first message, and StrangerLimits::bytes limits it.
inline constexpr size_t kTracePartEvents = 1000;

// Converts events to parts of at most kTracePartEvents events. There is at least one part. If
// `job` is not 0, events of other jobs are left out.
std::vector<v1::TracePart> ToProto(const TraceRecords& records, uint32_t job = 0);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_TRACE_H_
