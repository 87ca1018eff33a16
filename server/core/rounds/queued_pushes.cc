#include "server/core/rounds/queued_pushes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/rounds/answer_sinks.h"

namespace syncgrads::server {

absl::Status QueuedPushes::Add(const PushHeader& header, Payload payload,
                               std::shared_ptr<AnswerSink>& sink) {
  const auto [at, is_first] = index_.try_emplace(header.member, pushes_.size());
  if (is_first) {
    pushes_.push_back({header, std::move(payload), std::move(sink)});
    return absl::OkStatus();
  }
  Push& earlier = pushes_[at->second];
  const bool is_retry = earlier.header.round == header.round &&
                        earlier.header.epoch == header.epoch &&
                        earlier.header.incarnation == header.incarnation;
  if (!is_retry) {
    return absl::UnavailableError(absl::StrCat(
        "member ", ToNumber(header.member), " pushes round ", ToNumber(header.round), " in epoch ",
        header.epoch, ", but its push of round ", ToNumber(earlier.header.round), " in epoch ",
        earlier.header.epoch, " waits until a result has been computed"));
  }
  earlier.sink = AlsoTo(std::move(earlier.sink), std::move(sink));
  return absl::OkStatus();
}

std::vector<QueuedPushes::Push> QueuedPushes::Take() {
  index_.clear();
  return std::exchange(pushes_, {});
}

}  // namespace syncgrads::server
