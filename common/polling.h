// What loops around poll() share.

#ifndef SYNCGRADS_COMMON_POLLING_H_
#define SYNCGRADS_COMMON_POLLING_H_

#include "absl/time/time.h"
#include "common/file_descriptor.h"

namespace syncgrads {

// Returns the time until `deadline` as an argument of poll(): at least 0; -1 if it is infinite.
// After a wait of an hour, poll() may return before the deadline.
int PollTimeout(absl::Time deadline);

// Waits for one of `events` of poll(). Returns false if `deadline` passes first.
bool AwaitSocket(int socket, short events, absl::Time deadline);

// Wakes a thread that waits in poll(), once and for ever. Thread-safe.
class StopEvent {
 public:
  StopEvent();

  // From now on, poll() finds the descriptor readable (POLLIN).
  void Set();
  bool is_set() const;
  int descriptor() const { return event_.get(); }

 private:
  const FileDescriptor event_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_POLLING_H_
