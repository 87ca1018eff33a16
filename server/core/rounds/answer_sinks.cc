#include "server/core/rounds/answer_sinks.h"

#include <utility>
#include <vector>

namespace syncgrads::server {
namespace {

class AnswerSinks : public AnswerSink {
 public:
  void Add(const std::shared_ptr<AnswerSink>& sink) {
    std::erase_if(sinks_, [&sink](const std::weak_ptr<AnswerSink>& other) {
      const std::shared_ptr<AnswerSink> held = other.lock();
      return held == nullptr || held == sink;
    });
    sinks_.push_back(sink);
  }
  void AddAll(const AnswerSinks& others) {
    for (const std::weak_ptr<AnswerSink>& other : others.sinks_) {
      if (const auto held = other.lock()) Add(held);
    }
  }
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    for (const std::weak_ptr<AnswerSink>& sink : sinks_) {
      if (const auto held = sink.lock()) held->Send(result, with_payload);
    }
  }

 private:
  // Those of streams that are open: a worker may open new ones for as long as the round is open.
  std::vector<std::weak_ptr<AnswerSink>> sinks_;
};

}  // namespace

std::shared_ptr<AnswerSink> AlsoTo(std::shared_ptr<AnswerSink> earlier,
                                   std::shared_ptr<AnswerSink> later) {
  if (earlier == nullptr || earlier == later) return later;
  auto sinks = std::dynamic_pointer_cast<AnswerSinks>(earlier);
  if (sinks == nullptr) {
    sinks = std::make_shared<AnswerSinks>();
    sinks->Add(earlier);
  }
  if (const auto several = std::dynamic_pointer_cast<AnswerSinks>(later)) {
    sinks->AddAll(*several);
  } else {
    sinks->Add(later);
  }
  return sinks;
}

}  // namespace syncgrads::server
