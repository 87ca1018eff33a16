#include "server/service/stream_deadlines.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace syncgrads::server {

absl::Time StreamDeadlines::Add(const std::shared_ptr<TimedStream>& stream) {
  const absl::Time deadline = clock_.Now() + timeout_;
  MutexLock lock(mutex_);
  streams_[{deadline, stream.get()}] = stream;
  return deadline;
}

void StreamDeadlines::Remove(const TimedStream* stream, absl::Time deadline) {
  MutexLock lock(mutex_);
  streams_.erase({deadline, stream});
}

void StreamDeadlines::Tick() {
  const absl::Time now = clock_.Now();
  std::vector<std::pair<std::shared_ptr<TimedStream>, absl::Duration>> late;
  {
    MutexLock lock(mutex_);
    while (!streams_.empty()) {
      const auto& [key, stream] = *streams_.begin();
      const absl::Time deadline = key.first;
      if (deadline > now && streams_.size() <= kMostStreams) break;
      late.emplace_back(stream.lock(), std::min(timeout_, now - (deadline - timeout_)));
      streams_.erase(streams_.begin());
    }
  }
  for (const auto& [stream, time] : late) {
    if (stream != nullptr) stream->OnTimeout(time);
  }
}

}  // namespace syncgrads::server
