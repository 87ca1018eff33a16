// Strong types for ids. The compiler rejects an id of one kind in place of another, and arithmetic
// on an id by accident.

#ifndef SYNCGRADS_COMMON_IDS_H_
#define SYNCGRADS_COMMON_IDS_H_

#include <cstdint>
#include <type_traits>

namespace syncgrads {

// A member's number within its job. It is never used twice: a worker that is admitted again under
// its old name gets a new number.
enum class MemberId : uint32_t {};
// A random number that a worker draws each time it starts.
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
// A job's number that grows whenever its state is reset or rolled back. The first is 1.
enum class Generation : uint64_t {};

template <typename Id>
requires std::is_enum_v<Id>
constexpr auto ToNumber(Id id) { return static_cast<std::underlying_type_t<Id>>(id); }

constexpr Round Next(Round round) { return Round{ToNumber(round) + 1}; }
constexpr Round Previous(Round round) { return Round{ToNumber(round) - 1}; }

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_IDS_H_
