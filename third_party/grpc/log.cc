#include "third_party/grpc/log.h"

#include <grpc/support/log.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "common/line_throttle.h"

namespace syncgrads {
namespace {

// The target of gRPC's log lines. It is global because gRPC accepts only a plain function pointer,
// without any data.
struct Target {
  std::shared_mutex mutex;
  // Both are guarded by the mutex.
  std::function<void(const std::string& line)> write;
  std::unique_ptr<LineThrottle> throttle;
};

Target& TheTarget() {
  static Target* const target = new Target();
  return *target;
}

void Write(gpr_log_func_args* args) {
  Target& target = TheTarget();
  std::shared_lock lock(target.mutex);
  if (target.write == nullptr) return;
  const std::string place = std::string(args->file) + ":" + std::to_string(args->line);
  const std::optional<uint64_t> lines = target.throttle->Pass(place);
  if (!lines.has_value()) return;
  std::string line = place + ": " + args->message;
  if (*lines > 1) {
    line += " (and " + std::to_string(*lines - 1) + " others since the last such line)";
  }
  target.write(line);
}

}  // namespace

GrpcLog::GrpcLog(std::function<void(const std::string& line)> write, const Clock& clock) {
  {
    std::unique_lock lock(TheTarget().mutex);
    TheTarget().throttle = std::make_unique<LineThrottle>(clock);
    TheTarget().write = std::move(write);
  }
  gpr_set_log_function(Write);
}

GrpcLog::~GrpcLog() {
  gpr_set_log_function(nullptr);
  std::unique_lock lock(TheTarget().mutex);
  TheTarget().write = nullptr;
}

}  // namespace syncgrads
