// Strong types for the numbers that name things. Two ids of different kinds
// cannot be mixed up, and none can be used in arithmetic by accident.

#ifndef SYNCGRADS_COMMON_IDS_H_
#define SYNCGRADS_COMMON_IDS_H_

#include <cstdint>
#include <type_traits>

namespace syncgrads {

// A member's number within its job, never used twice; its name outlives it.
enum class MemberId : uint32_t {};
// Drawn anew by a worker each time it starts.
enum class Incarnation : uint64_t {};
// A group's number within its job, in order of registration.
enum class GroupId : uint32_t {};
// A chunk's position in its group's layout.
enum class ChunkId : uint32_t {};
// A tensor's position in its group, in order of registration.
enum class TensorId : uint32_t {};
// A server's position in its job's list; server 0 is the coordinator.
enum class ServerIndex : uint32_t {};
// A synchronised step of one chunk. Rounds of gradients count from 1. In a
// group whose optimizer runs on the servers, round 0 sets the parameters.
enum class Round : uint64_t {};
// A position in one epoch's list of members.
enum class Rank : uint32_t {};
// Grows when a job's state is started afresh or set back; the first is 1.
enum class Generation : uint64_t {};

template <typename Id>
  requires std::is_enum_v<Id>
constexpr auto ToNumber(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

constexpr Round Next(Round round) { return Round{ToNumber(round) + 1}; }
constexpr Round Previous(Round round) { return Round{ToNumber(round) - 1}; }

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_IDS_H_
