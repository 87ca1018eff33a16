#include "third_party/grpc/log.h"

#include <grpc/support/log.h>

#include <mutex>
#include <shared_mutex>
#include <utility>

namespace syncgrads {
namespace {

// The target of gRPC's log lines. It is global because gRPC accepts only a plain function pointer,
// without any data.
struct Target {
  std::shared_mutex mutex;
  std::function<void(const std::string& line)> write;  // guarded by mutex
};

Target& TheTarget() {
  static Target* const target = new Target();
  return *target;
}

void Write(gpr_log_func_args* args) {
  Target& target = TheTarget();
  std::shared_lock lock(target.mutex);
  if (target.write == nullptr) return;
  target.write(std::string(args->file) + ":" + std::to_string(args->line) + ": " + args->message);
}

}  // namespace

GrpcLog::GrpcLog(std::function<void(const std::string& line)> write) {
  {
    std::unique_lock lock(TheTarget().mutex);
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
