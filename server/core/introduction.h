// What a worker says of itself to be admitted.

#ifndef SYNCGRADS_SERVER_CORE_INTRODUCTION_H_
#define SYNCGRADS_SERVER_CORE_INTRODUCTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/ids.h"

namespace syncgrads::server {

struct Introduction {
  uint32_t protocol_version = 0;
  std::string job;
  std::string token;
  std::string name;
  Incarnation incarnation{};
  std::optional<uint32_t> rank;
  uint32_t world_size = 0;
  std::string host;
  // 0 on the first stream.
  Generation generation{};
};

// What can be wrong with it whatever the job.
//
// Errors:
//   InvalidArgument     no job name, no incarnation, no world size, or a rank
//                       beyond it
//   FailedPrecondition  another protocol version
absl::Status CheckIntroduction(const Introduction& introduction);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_INTRODUCTION_H_
