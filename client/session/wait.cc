#include "client/session/wait.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/mutex.h"

namespace syncgrads::client {
namespace {

// The sentences received from the servers so far. Shared with callbacks that may run after the wait
// has ended.
class Explanation {
 public:
  void Add(std::string sentence) {
    MutexLock lock(mutex_);
    sentences_.push_back(std::move(sentence));
  }
  std::vector<std::string> sentences() const {
    MutexLock lock(mutex_);
    return sentences_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> sentences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status AwaitAnswers(GroupRounds& rounds, GroupRounds::Chunks chunks, absl::Duration timeout,
                          DataPlane& plane) {
  const absl::Time start = plane.Now();
  const absl::Time deadline = start + timeout;
  const absl::Duration margin = std::min(absl::Milliseconds(200), timeout / 4);
  const auto is_over = [&] { return rounds.IsOver(chunks); };
  if (timeout > absl::ZeroDuration() && !is_over()) plane.Poll(is_over);
  if (rounds.Await(chunks, deadline - margin)) return rounds.Outcome(chunks);

  const GroupRounds::Unanswered unanswered = rounds.FindUnanswered(chunks);
  auto explanation = std::make_shared<Explanation>();
  if (margin > absl::ZeroDuration()) {
    plane.Explain(rounds, unanswered.servers, deadline - plane.Now(),
                  [explanation](std::string sentence) { explanation->Add(std::move(sentence)); });
  }
  if (rounds.Await(chunks, deadline)) return rounds.Outcome(chunks);

  const std::vector<std::string> sentences = explanation->sentences();
  std::string why = absl::StrJoin(sentences, "; ");
  if (sentences.size() < unanswered.servers.size()) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", unanswered.servers.size() - sentences.size(),
                    " of ", unanswered.servers.size(),
                    " servers did not report the reason in time");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("step ", ToNumber(rounds.round()), " of group \"", rounds.plan().spec.name,
                   "\": ", unanswered.chunks, " of ", chunks.count, " chunks have no result after ",
                   absl::FormatDuration(timeout), ": ", why));
}

}  // namespace syncgrads::client
