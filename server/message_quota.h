// Limits the memory of the messages that gRPC has received, and its threads.

#ifndef SYNCGRADS_SERVER_MESSAGE_QUOTA_H_
#define SYNCGRADS_SERVER_MESSAGE_QUOTA_H_

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace syncgrads::server {

// Contributions that wait for their round are received messages. So the quota is a quarter of the
// memory more than all jobs may need, and at least half of the memory.
//
// gRPC counts what it has read from connections until the last reference to it is dropped. It does
// not stop to read at the quota. While it holds more than that, it cancels streams of any
// connection, one after the other, and closes connections that have none. A member whose stream is
// cancelled opens it again and repeats what was not answered.
//
// Reflection is the only service whose streams need a thread each. A stream for which there is none
// ends with RESOURCE_EXHAUSTED.
//
// Thread-compatible.
class MessageQuota {
 public:
  // `memory` is what this server may use, in bytes; 0: not known, and memory is not limited.
  explicit MessageQuota(uint64_t memory) : memory_(memory) { quota_.SetMaxThreads(kMaxThreads); }

  void Apply(grpc::ServerBuilder& builder) { builder.SetResourceQuota(quota_); }

  // Adapts the quota to the bytes that all jobs may need.
  void Fit(uint64_t jobs) {
    if (memory_ == 0) return;
    const uint64_t bytes = std::max(memory_ / 2, jobs + memory_ / 4);
    if (std::exchange(bytes_, bytes) != bytes) quota_.Resize(bytes);
  }

 private:
  static constexpr int kMaxThreads = 16;

  const uint64_t memory_;
  grpc::ResourceQuota quota_;
  // The size of the quota; 0 before the first Fit.
  uint64_t bytes_ = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_MESSAGE_QUOTA_H_
