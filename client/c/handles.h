// What the handles of syncgrads.h point to, and what its functions have in common.

#ifndef SYNCGRADS_CLIENT_C_HANDLES_H_
#define SYNCGRADS_CLIENT_C_HANDLES_H_

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/c/syncgrads.h"
#include "client/client.h"
#include "common/mutex.h"

namespace syncgrads::c {

// Lines of text that the client reports on its own threads. Thread-safe.
class Notices {
 public:
  void Add(const std::string& line);
  // Removes and returns the oldest line; nullopt if there is none.
  std::optional<std::string> Take();

 private:
  Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::c

struct sg_group {
  const sg_client& owner;
  syncgrads::Group& group;
  // The state of sg_broadcast_parameters. The library reads it until that call has succeeded.
  syncgrads::OptimizerState restored = {};
};

struct sg_client {
  explicit sg_client(syncgrads::ClientOptions options);

  // Returns the handle of a group of this client.
  sg_group* HandleOf(syncgrads::Group* group);

  const pid_t process;  // the process that made the client
  // Outlives `client`, whose threads add to it.
  syncgrads::c::Notices notices;
  std::optional<syncgrads::Client> client;

 private:
  syncgrads::Mutex mutex_;
  std::map<syncgrads::Group*, std::unique_ptr<sg_group>> groups_ ABSL_GUARDED_BY(mutex_);
};

struct sg_pending {
  const sg_client& owner;
  syncgrads::Pending pending;
};

struct sg_snapshot {
  const sg_client& owner;
  const syncgrads::Group& group;
  std::unique_ptr<syncgrads::OptimizerSnapshot> snapshot;
};

namespace syncgrads::c {

// Writes `status` as syncgrads.h describes it, and returns its code.
int Report(const absl::Status& status, char* message, size_t message_size);

// Calls `call`, which returns a status, and reports it. Exceptions become errors.
template <typename Function>
int Answer(char* message, size_t message_size, Function call) noexcept {
  try {
    return Report(call(), message, message_size);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("out of memory"), message, message_size);
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()), message, message_size);
  } catch (...) {
    return Report(absl::InternalError("an exception of an unknown type"), message, message_size);
  }
}

// Calls `call` for a function that cannot report an error. Returns `otherwise` if it throws.
template <typename Value, typename Function>
Value ValueOf(Value otherwise, Function call) noexcept {
  try {
    return call();
  } catch (...) {
    return otherwise;
  }
}

// InvalidArgument if `argument` is null.
absl::Status CheckNotNull(const void* argument, const char* name);

// Checks that a handle can be used: InvalidArgument if it is null, FailedPrecondition in a process
// that was forked from the one that made its client.
absl::Status CheckUsable(const sg_client* client);
template <typename Handle>
absl::Status CheckUsable(const Handle* handle) {
  return handle == nullptr ? CheckNotNull(nullptr, "handle") : CheckUsable(&handle->owner);
}

// Converts a timeout in seconds. InvalidArgument if it is NaN.
absl::StatusOr<absl::Duration> TimeoutOf(double seconds);

// InvalidArgument if `dtype` or `reduction` is none of the enum.
absl::StatusOr<DType> DTypeOfNumber(int32_t dtype);
absl::StatusOr<Reduction> ReductionOf(int32_t reduction);

// Errors:
//   InvalidArgument  a name, or the shape of a tensor that has axes, is null; or a dtype is unknown
absl::StatusOr<std::vector<NamedTensor>> TensorsOf(const sg_tensor* tensors, size_t count);

// Copies `text` with a terminating 0 to at most `size` bytes. A longer text is cut.
void CopyText(absl::string_view text, char* to, size_t size);

// InvalidArgument if a struct of the caller is null, or its field `size` is not set.
template <typename Struct>
absl::Status CheckSize(const Struct* given) {
  if (given != nullptr && given->size >= sizeof(size_t)) return absl::OkStatus();
  return absl::InvalidArgumentError("a struct is null, or its field `size` is not set");
}

// Copies `value` to a struct of the caller, which may be of another version: as many bytes as both
// have. Errors: those of CheckSize.
template <typename Struct>
absl::Status CopyOut(Struct value, Struct* to) {
  if (absl::Status checked = CheckSize(to); !checked.ok()) return checked;
  value.size = to->size;
  std::memcpy(to, &value, std::min(to->size, sizeof(Struct)));
  return absl::OkStatus();
}

// Copies a struct of the caller, which may be of another version. Fields that it lacks are 0.
// Errors: those of CheckSize.
template <typename Struct>
absl::StatusOr<Struct> CopyIn(const Struct* from) {
  if (absl::Status checked = CheckSize(from); !checked.ok()) return checked;
  Struct value = {};
  std::memcpy(&value, from, std::min(from->size, sizeof(Struct)));
  return value;
}

// Calls `call` on a thread of its own that blocks all signals, and returns when it has returned.
// Threads that it starts block them as well, so that the host's signals are handled on the host's
// threads. Exceptions of `call` are passed on. For calls that wait: the caller's thread can still
// handle signals.
void CallWithoutSignals(absl::FunctionRef<void()> call);

// Blocks all signals of the calling thread while it exists, for the same reason. For calls that do
// not wait: gRPC starts threads on a thread that sends, if its own threads are busy.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Signals of the calling thread may be blocked for this long.
inline constexpr absl::Duration kShortWait = absl::Milliseconds(250);

// Calls `wait` with a timeout of at most `limit`. If that is at most kShortWait, on the calling
// thread with signals blocked. If it is longer, there only without waiting, and then, if that is
// DeadlineExceeded, by CallWithoutSignals, which takes longer to start and to end.
absl::Status WaitWithoutSignals(absl::Duration limit,
                                absl::FunctionRef<absl::Status(absl::Duration)> wait);

}  // namespace syncgrads::c

#endif  // SYNCGRADS_CLIENT_C_HANDLES_H_
