// Starts threads on behalf of a caller.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_START_THREAD_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncgrads::server {

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
        absl::StrCat("the server cannot start a thread for ", what, ": ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_START_THREAD_H_
