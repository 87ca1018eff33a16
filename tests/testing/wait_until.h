// Waits for an outcome that another thread or another process brings about.

#ifndef SYNCGRADS_TESTS_TESTING_WAIT_UNTIL_H_
#define SYNCGRADS_TESTS_TESTING_WAIT_UNTIL_H_

#include <thread>

#include "absl/time/time.h"
#include "common/clock.h"

namespace syncgrads::testing {

// Calls `condition` until it returns true, and yields the processor in between. Returns false if
// `condition` still returns false after one minute, which is much longer than an outcome takes on
// a loaded machine with sanitizers.
template <typename Condition>
[[nodiscard]] bool WaitUntil(Condition condition) {
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  while (!condition()) {
    if (MonotonicNow() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_WAIT_UNTIL_H_
