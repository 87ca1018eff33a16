#include "server/core/rounds/answer_sinks.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace syncgrads::server {
namespace {

class AnswerSinks : public AnswerSink {
 public:
  void Add(std::shared_ptr<AnswerSink> sink) {
    if (std::find(sinks_.begin(), sinks_.end(), sink) == sinks_.end()) {
      sinks_.push_back(std::move(sink));
    }
  }
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    for (const std::shared_ptr<AnswerSink>& sink : sinks_) sink->Send(result, with_payload);
  }

 private:
  std::vector<std::shared_ptr<AnswerSink>> sinks_;
};

}  // namespace

std::shared_ptr<AnswerSink> AlsoTo(std::shared_ptr<AnswerSink> earlier,
                                   std::shared_ptr<AnswerSink> later) {
  if (earlier == nullptr || earlier == later) return later;
  auto sinks = std::dynamic_pointer_cast<AnswerSinks>(earlier);
  if (sinks == nullptr) {
    sinks = std::make_shared<AnswerSinks>();
    sinks->Add(std::move(earlier));
  }
  sinks->Add(std::move(later));
  return sinks;
}

}  // namespace syncgrads::server
