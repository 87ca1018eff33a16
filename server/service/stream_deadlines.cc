#include "server/service/stream_deadlines.h"

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

bool StreamDeadlines::Tick() {
  const absl::Time now = clock_.Now();
  std::vector<std::shared_ptr<TimedStream>> late;
  {
    MutexLock lock(mutex_);
    while (!streams_.empty() && streams_.begin()->first.first <= now) {
      late.push_back(streams_.begin()->second.lock());
      streams_.erase(streams_.begin());
    }
  }
  for (const std::shared_ptr<TimedStream>& stream : late) {
    if (stream != nullptr) stream->OnTimeout(timeout_);
  }
  return !late.empty();
}

}  // namespace syncgrads::server
