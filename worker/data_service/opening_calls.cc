#include "worker/data_service/opening_calls.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace syncgrads {

// Cancels a call while its Entry exists. Thread-safe.
class OpeningCalls::Entry::Cancel {
 public:
  explicit Cancel(grpc::ServerContext& call) : call_(&call) {}

  void operator()() {
    MutexLock lock(mutex_);
    if (call_ != nullptr) call_->TryCancel();
  }
  // From now on, nothing is cancelled.
  void Release() {
    MutexLock lock(mutex_);
    call_ = nullptr;
  }

 private:
  Mutex mutex_;
  grpc::ServerContext* call_ ABSL_GUARDED_BY(mutex_);
};

OpeningCalls::Entry::Entry(OpeningCalls& calls, std::string network, grpc::ServerContext& call)
    : calls_(calls), cancel_(std::make_shared<Cancel>(call)) {
  const int64_t timeout = absl::ToInt64Nanoseconds(calls_.limits_.timeout);
  deadline_.Set(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(timeout, GPR_TIMESPAN)),
      [cancel = cancel_](bool has_passed) {
        if (has_passed) (*cancel)();
      });
  const std::shared_ptr<Cancel> oldest = calls_.Add({std::move(network), cancel_});
  if (oldest != nullptr) (*oldest)();
}

OpeningCalls::Entry::~Entry() {
  calls_.Remove(*cancel_);
  cancel_->Release();
}

std::shared_ptr<OpeningCalls::Entry::Cancel> OpeningCalls::Add(Waiting call) {
  MutexLock lock(mutex_);
  const auto is_of_peer = [&call](const Waiting& other) { return other.network == call.network; };
  auto oldest = waiting_.end();
  if (std::count_if(waiting_.begin(), waiting_.end(), is_of_peer) >=
      static_cast<ptrdiff_t>(limits_.calls_per_peer)) {
    oldest = std::find_if(waiting_.begin(), waiting_.end(), is_of_peer);
  } else if (waiting_.size() >= limits_.calls) {
    oldest = waiting_.begin();
  }
  std::shared_ptr<Entry::Cancel> cancel;
  if (oldest != waiting_.end()) {
    cancel = std::move(oldest->cancel);
    waiting_.erase(oldest);
  }
  waiting_.push_back(std::move(call));
  return cancel;
}

void OpeningCalls::Remove(const Entry::Cancel& cancel) {
  MutexLock lock(mutex_);
  waiting_.remove_if([&cancel](const Waiting& one) { return one.cancel.get() == &cancel; });
}

}  // namespace syncgrads
