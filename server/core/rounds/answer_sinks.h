// One sink that sends an answer to several streams.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_SINKS_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_SINKS_H_

#include <memory>

#include "server/core/rounds/round_result.h"

namespace syncgrads::server {

// Returns a sink that sends each answer once to every sink of `earlier`, which may be null, and of
// `later`. Both may be sinks that AlsoTo has returned. It may change `earlier` and return it, so
// the caller holds the lock that protects `earlier`.
//
// When a worker's stream breaks, the worker retries its push on a new stream. The server may read
// the push from the old stream after the retry, so the order of arrival does not show which stream
// is alive. The answer is therefore sent to both, and the broken stream drops it. The sink does not
// own `earlier` and `later`: a stream lives as long as its call.
std::shared_ptr<AnswerSink> AlsoTo(std::shared_ptr<AnswerSink> earlier,
                                   std::shared_ptr<AnswerSink> later);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_SINKS_H_
