#include "client/link/unanswered.h"

#include <utility>

#include "absl/status/status.h"

namespace syncgrads::client {

void Unanswered::Enqueue(const ChunkKey& key, UnansweredContribution& contribution) {
  contribution.stream = 0;
  queue_.emplace(PlaceOf(key, contribution), key);
}

Unanswered::Message Unanswered::Add(const ChunkKey& key, uint64_t made_in, Message message) {
  const auto [place, is_new] = contributions_.try_emplace(key);
  UnansweredContribution& contribution = place->second;
  if (!is_new) queue_.erase(PlaceOf(key, contribution));
  contribution.message.swap(message);
  contribution.made_in = made_in;
  contribution.sequence = next_sequence_++;
  Enqueue(key, contribution);
  return message;
}

Unanswered::Message Unanswered::Forget(const ChunkKey& key) {
  const auto found = contributions_.find(key);
  if (found == contributions_.end()) return nullptr;
  Message message = std::move(found->second.message);
  queue_.erase(PlaceOf(key, found->second));
  contributions_.erase(found);
  return message;
}

std::vector<Unanswered::Message> Unanswered::Clear() {
  std::vector<Message> messages;
  messages.reserve(contributions_.size());
  for (auto& [key, contribution] : contributions_) {
    messages.push_back(std::move(contribution.message));
  }
  contributions_.clear();
  queue_.clear();
  return messages;
}

Unanswered::Message Unanswered::Next() const {
  return queue_.empty() ? nullptr : contributions_.at(queue_.begin()->second).message;
}

void Unanswered::MarkSent(StreamNumber stream) {
  contributions_.at(queue_.begin()->second).stream = stream;
  queue_.erase(queue_.begin());
}

void Unanswered::Requeue(StreamNumber stream, absl::FunctionRef<void(Message&)> change) {
  for (auto& [key, contribution] : contributions_) {
    if (contribution.stream != stream) continue;
    change(contribution.message);
    Enqueue(key, contribution);
  }
}

Unanswered::Outcome Unanswered::Answer(const ChunkKey& key, const UpdateHeader& header,
                                       UnansweredContribution& answered) {
  const auto found = contributions_.find(key);
  if (found == contributions_.end()) return Outcome::kIgnored;
  UnansweredContribution& contribution = found->second;
  // A repeated refusal of an earlier attempt: this attempt was made in a newer epoch.
  if (!header.error.ok() && header.epoch > 0 && header.epoch < contribution.made_in) {
    return Outcome::kIgnored;
  }
  if (absl::IsUnavailable(header.error)) {
    if (contribution.stream == 0) return Outcome::kIgnored;
    contribution.stream = 0;
    return Outcome::kPostponed;
  }
  queue_.erase(PlaceOf(key, contribution));
  answered = std::move(contribution);
  contributions_.erase(found);
  return Outcome::kAnswered;
}

bool Unanswered::Resume(const ChunkKey& key) {
  const auto found = contributions_.find(key);
  if (found == contributions_.end() || found->second.stream != 0) return false;
  Enqueue(key, found->second);
  return true;
}

void Unanswered::Restore(const ChunkKey& key, UnansweredContribution& answered) {
  const auto [place, is_new] = contributions_.try_emplace(key, std::move(answered));
  if (is_new) Enqueue(key, place->second);
}

}  // namespace syncgrads::client
