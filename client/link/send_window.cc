#include "client/link/send_window.h"

#include <algorithm>

namespace syncgrads::client {
namespace {

// The network's throughput is measured over at least this much busy time.
constexpr absl::Duration kWatch = absl::Milliseconds(10);

}  // namespace

bool SendWindow::Take(const std::shared_ptr<Sender>& sender, size_t bytes) {
  if (bytes < kSmall) return true;
  MutexLock lock(mutex_);
  MeasureLocked();
  if (taken_ < room_) {
    taken_ += bytes;
    return true;
  }
  const bool waits =
      std::any_of(line_.begin(), line_.end(), [&sender](const std::weak_ptr<Sender>& waiting) {
        return !waiting.owner_before(sender) && !sender.owner_before(waiting);
      });
  if (!waits) line_.push_back(sender);
  return false;
}

void SendWindow::GiveBack(size_t bytes) {
  if (bytes < kSmall) return;
  {
    MutexLock lock(mutex_);
    MeasureLocked();
    taken_ -= bytes;
    passed_ += bytes;
    if (busy_ >= kWatch) {
      const double moments = absl::FDivDuration(busy_, moment_);
      room_ = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(passed_) / moments));
      passed_ = 0;
      busy_ = absl::ZeroDuration();
    }
  }
  while (true) {
    std::shared_ptr<Sender> next;
    {
      MutexLock lock(mutex_);
      if (taken_ >= room_ || line_.empty()) return;
      next = line_.front().lock();
      line_.pop_front();
    }
    if (next != nullptr) next->OnTurn();
  }
}

void SendWindow::SetMoment(absl::Duration moment) {
  MutexLock lock(mutex_);
  moment_ = moment;
}

void SendWindow::MeasureLocked() {
  const absl::Time now = timers_.Now();
  if (taken_ > 0) busy_ += now - measured_;
  measured_ = now;
}

}  // namespace syncgrads::client
