#include "client/c/handles.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"

namespace syncgrads::c {
namespace {

constexpr size_t kMostNotices = 256;
// The maximum timeout. Longer ones are reduced to it, because clocks cannot represent them.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 3650);

ClientOptions WithNotices(ClientOptions options, Notices& notices) {
  const auto add = [&notices](const std::string& line) { notices.Add(line); };
  options.on_path = add;
  options.on_paths = add;
  options.on_tuned = add;
  options.on_codec_replaced = add;
  return options;
}

}  // namespace

void Notices::Add(const std::string& line) {
  MutexLock lock(mutex_);
  if (lines_.size() == kMostNotices) lines_.pop_front();
  lines_.push_back(line);
}

std::optional<std::string> Notices::Take() {
  MutexLock lock(mutex_);
  if (lines_.empty()) return std::nullopt;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

int Report(const absl::Status& status, char* message, size_t message_size) {
  CopyText(status.message(), message, message_size);
  return static_cast<int>(status.code());
}

void CopyText(absl::string_view text, char* to, size_t size) {
  if (to == nullptr || size == 0) return;
  const size_t length = std::min(text.size(), size - 1);
  if (length > 0) std::memcpy(to, text.data(), length);
  to[length] = 0;
}

absl::Status CheckNotNull(const void* argument, const char* name) {
  if (argument != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the argument `", name, "` is null"));
}

absl::Status CheckUsable(const sg_client* client) {
  if (client == nullptr) return CheckNotNull(nullptr, "client");
  const pid_t self = getpid();
  if (self == client->process) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the client was made in process ",
                                                    client->process, ", from which this process ",
                                                    self, " was forked: make a new client here"));
}

absl::StatusOr<absl::Duration> TimeoutOf(double seconds) {
  if (std::isnan(seconds)) return absl::InvalidArgumentError("the timeout is NaN");
  return std::clamp(absl::Seconds(seconds), absl::ZeroDuration(), kLongestTimeout);
}

absl::StatusOr<DType> DTypeOfNumber(int32_t dtype) {
  for (DType known : kAllDTypes) {
    if (static_cast<int32_t>(known) == dtype) return known;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", dtype));
}

absl::StatusOr<Reduction> ReductionOf(int32_t reduction) {
  if (reduction >= SG_AVERAGE && reduction <= SG_PRODUCT) return static_cast<Reduction>(reduction);
  return absl::InvalidArgumentError(absl::StrCat("unknown reduction ", reduction));
}

absl::StatusOr<std::vector<NamedTensor>> TensorsOf(const sg_tensor* tensors, size_t count) {
  std::vector<NamedTensor> converted;
  converted.reserve(count);
  for (size_t t = 0; t < count; ++t) {
    const sg_tensor& tensor = tensors[t];
    if (tensor.name == nullptr || (tensor.shape == nullptr && tensor.axes > 0)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", t, " has no name or no shape"));
    }
    const absl::StatusOr<DType> dtype = DTypeOfNumber(tensor.dtype);
    if (!dtype.ok()) return dtype.status();
    converted.push_back(
        {{tensor.name, *dtype, {tensor.shape, tensor.shape + tensor.axes}}, tensor.data});
  }
  return converted;
}

void CallWithoutSignals(absl::FunctionRef<void()> call) {
  std::exception_ptr thrown;
  std::thread thread;
  try {
    const SignalsBlocked blocked;
    thread = std::thread([&] {
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thread.joinable()) thread.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

absl::Status WaitWithoutSignals(absl::Duration limit,
                                absl::FunctionRef<absl::Status(absl::Duration)> wait) {
  absl::Status status;
  {
    const SignalsBlocked blocked;
    status = wait(limit <= kShortWait ? limit : absl::ZeroDuration());
  }
  if (!absl::IsDeadlineExceeded(status) || limit <= kShortWait) return status;
  CallWithoutSignals([&] { status = wait(limit); });
  return status;
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace syncgrads::c

sg_client::sg_client(syncgrads::ClientOptions options) : process(getpid()) {
  // Keeps gRPC running until the process ends. gRPC 1.51 leaks a thread now and then if the last
  // client of a process shuts it down and the next one starts it again.
  [[maybe_unused]] static const bool initialised = (grpc_init(), true);
  client.emplace(syncgrads::c::WithNotices(std::move(options), notices));
}

sg_group* sg_client::HandleOf(syncgrads::Group* group) {
  syncgrads::MutexLock lock(mutex_);
  std::unique_ptr<sg_group>& handle = groups_[group];
  if (handle == nullptr) handle = std::make_unique<sg_group>(sg_group{*this, *group});
  return handle.get();
}
