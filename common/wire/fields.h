// The field numbers of the messages in proto/data.proto, for the encoder and the decoder.

#ifndef SYNCGRADS_COMMON_WIRE_FIELDS_H_
#define SYNCGRADS_COMMON_WIRE_FIELDS_H_

#include <cstdint>

namespace syncgrads::wire {

// The wire type of a field's value, with protobuf's numbers.
enum class Type : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

enum HelloField : uint32_t {
  kHelloProtocolVersion = 1,
  kHelloJob = 2,
  kHelloToken = 3,
  kHelloMember = 4,
  kHelloIncarnation = 5,
  kHelloHostId = 6,
  kHelloMemberSecret = 7,
};

enum PushField : uint32_t {
  kPushHello = 1,
  kPushGeneration = 2,
  kPushGroup = 3,
  kPushChunk = 4,
  kPushRound = 5,
  kPushMember = 6,
  kPushIncarnation = 7,
  kPushEpoch = 8,
  kPushCodec = 9,
  kPushWeight = 10,
  kPushSkip = 11,
  kPushAbsentSpans = 12,
  kPushWithoutResult = 13,
  kPushShared = 14,
};

enum UpdateField : uint32_t {
  kUpdateGeneration = 1,
  kUpdateGroup = 2,
  kUpdateChunk = 3,
  kUpdateRound = 4,
  kUpdateEpoch = 5,
  kUpdateCodec = 6,
  kUpdateCounts = 7,
  kUpdateContributors = 8,
  kUpdateError = 9,
  kUpdateWelcome = 10,
  kUpdateShared = 11,
  kUpdateLeftOut = 14,
  kUpdateNewestRound = 13,
};

enum ErrorField : uint32_t { kErrorCode = 1, kErrorMessage = 2 };

enum PieceField : uint32_t { kPieceRegion = 1, kPieceOffset = 2, kPieceLength = 3 };

enum WelcomeField : uint32_t { kWelcomeSocket = 1, kWelcomeRefusal = 2, kWelcomeStream = 4 };

// The payload's field number, in PushChunk and in UpdateChunk.
inline constexpr uint32_t kPayload = 15;

}  // namespace syncgrads::wire

#endif  // SYNCGRADS_COMMON_WIRE_FIELDS_H_
