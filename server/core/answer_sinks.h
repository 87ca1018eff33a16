// Several streams that wait for one answer.

#ifndef SYNCGRADS_SERVER_CORE_ANSWER_SINKS_H_
#define SYNCGRADS_SERVER_CORE_ANSWER_SINKS_H_

#include <memory>

#include "server/core/round_result.h"

namespace syncgrads::server {

// What sends an answer to all who are in `earlier`, which may be null, and to `later`,
// once to each.
//
// A worker whose stream broke pushes again on another, and what it had sent on the old
// one may be read after that: which of the two it still listens to cannot be told from
// their order, and an answer on the other is nobody's.
std::shared_ptr<AnswerSink> AlsoTo(std::shared_ptr<AnswerSink> earlier,
                                   std::shared_ptr<AnswerSink> later);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ANSWER_SINKS_H_
