#include "server/service/calls/stream_deadlines.h"

#include <algorithm>
#include <limits>

namespace syncgrads::server {

absl::Time StreamDeadlines::Add(const std::shared_ptr<TimedStream>& stream) {
  MutexLock lock(mutex_);
  return AddTo(streams_, stream);
}

absl::Time StreamDeadlines::AddWithoutHello(const std::shared_ptr<TimedStream>& stream) {
  MutexLock lock(mutex_);
  return AddTo(without_hello_, stream);
}

absl::Time StreamDeadlines::AddTo(Streams& streams, const std::shared_ptr<TimedStream>& stream) {
  const absl::Time deadline = clock_.Now() + timeout_;
  streams[{deadline, stream.get()}] = stream;
  return deadline;
}

void StreamDeadlines::Remove(const TimedStream* stream, absl::Time deadline) {
  MutexLock lock(mutex_);
  without_hello_.erase({deadline, stream});
  streams_.erase({deadline, stream});
}

void StreamDeadlines::Tick() {
  Late late;
  {
    MutexLock lock(mutex_);
    Take(without_hello_, kMostWithoutHello, late);
    Take(streams_, std::numeric_limits<size_t>::max(), late);
  }
  for (const auto& [stream, time] : late) {
    if (stream != nullptr) stream->OnTimeout(time);
  }
}

void StreamDeadlines::Take(Streams& streams, size_t most, Late& late) {
  const absl::Time now = clock_.Now();
  while (!streams.empty()) {
    const auto& [key, stream] = *streams.begin();
    const absl::Time deadline = key.first;
    if (deadline > now && streams.size() <= most) return;
    late.emplace_back(stream.lock(), std::min(timeout_, now - (deadline - timeout_)));
    streams.erase(streams.begin());
  }
}

}  // namespace syncgrads::server
