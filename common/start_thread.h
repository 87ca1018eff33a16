// Starts threads where an exception would end the process.

#ifndef SYNCGRADS_COMMON_START_THREAD_H_
#define SYNCGRADS_COMMON_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

// Starts `thread` with `run`. `what` completes the error, for example "shared memory".
//
// Errors:
//   ResourceExhausted  the system has no thread for it
template <typename Function>
absl::Status StartThread(absl::string_view what, std::thread& thread, Function run) {
  try {
    thread = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for ", what, ": ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_START_THREAD_H_
