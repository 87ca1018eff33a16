// The answers to send once the lock of a chunk has been released.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_OUTBOX_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_OUTBOX_H_

#include <memory>
#include <utility>
#include <vector>

#include "common/trace/trace.h"
#include "server/core/rounds/round_result.h"

namespace syncgrads::server {

// A local variable of a function that takes the lock of a chunk: the function adds answers while it
// holds the lock, and sends them after it has released the lock. Sinks are therefore called without
// locks of the chunk.
//
// Not thread-safe; used by one thread.
class AnswerOutbox {
 public:
  // `with_payload` is false if the receiver wants the header of the result only. A refusal has no
  // payload, whatever the value.
  void Add(std::shared_ptr<AnswerSink> sink, std::shared_ptr<const RoundResult> result,
           bool with_payload = false) {
    answers_.push_back({std::move(sink), std::move(result), with_payload});
  }

  // Sends the answers in the order in which they were added.
  void Send() {
    if (answers_.empty()) return;
    const TraceSpan span("queue results");
    for (Answer& answer : answers_) {
      answer.sink->Send(std::move(answer.result), answer.with_payload);
    }
    answers_.clear();
  }

 private:
  struct Answer {
    std::shared_ptr<AnswerSink> sink;
    std::shared_ptr<const RoundResult> result;
    bool with_payload;
  };

  std::vector<Answer> answers_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_ANSWER_OUTBOX_H_
