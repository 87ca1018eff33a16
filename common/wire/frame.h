// Encodes and decodes the messages of the data plane around their payload.
//
// The bytes of a frame are those of the protobuf message (proto/data.proto), with its `bytes
// payload` last, so any gRPC client can send and receive them. The payload is never copied here: a
// sender puts EncodeHeader's bytes in front of the tensor's memory, and a receiver gets pieces that
// point into the received buffers.
//
// All functions are thread-safe.

#ifndef SYNCGRADS_COMMON_WIRE_FRAME_H_
#define SYNCGRADS_COMMON_WIRE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/ids.h"

namespace syncgrads {

// A sequence of bytes that lies in one or more places in memory, which it does not own.
using Pieces = absl::InlinedVector<absl::Span<const std::byte>, 4>;

size_t TotalBytes(absl::Span<const absl::Span<const std::byte>> pieces);

// The hello in the first message of a data stream. proto/data.proto describes the fields.
struct DataHello {
  uint32_t protocol_version = 0;
  std::string job;
  std::string token;
  MemberId member{};
  Incarnation incarnation{};
  std::string host_id;
  std::string member_secret = {};

  friend bool operator==(const DataHello&, const DataHello&) = default;
};

// The maximum number of pieces of shared memory in a push. A payload that lies in more of them is
// sent as bytes.
inline constexpr size_t kMaxSharedPieces = 16384;

// A part of a shared region. Offset and length are in bytes.
struct SharedPiece {
  uint32_t region = 0;
  uint64_t offset = 0;
  uint64_t length = 0;

  friend bool operator==(const SharedPiece&, const SharedPiece&) = default;
};

// The answer to a hello with a host_id. proto/data.proto describes the fields.
struct DataWelcome {
  std::string socket;
  std::string refusal;
  std::string stream;

  friend bool operator==(const DataWelcome&, const DataWelcome&) = default;
};

// A PushChunk without its payload. proto/data.proto describes the fields.
struct PushHeader {
  std::optional<DataHello> hello;
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  MemberId member{};
  Incarnation incarnation{};
  uint64_t epoch = 0;
  Codec codec = Codec::kRaw;
  double weight = 0;  // 0 stands for a weight of 1
  bool skip = false;
  std::vector<uint32_t> absent_spans;
  bool without_result = false;
  std::vector<SharedPiece> shared;  // at most kMaxSharedPieces

  friend bool operator==(const PushHeader&, const PushHeader&) = default;
};

// An UpdateChunk without its payload. proto/data.proto describes the fields.
struct UpdateHeader {
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  uint64_t epoch = 0;
  Codec codec = Codec::kRaw;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> contributors;
  // If it is not OK, the push was refused.
  absl::Status error;
  std::optional<DataWelcome> welcome;
  std::optional<SharedPiece> shared;
  std::vector<uint32_t> left_out;
  // The newest round of the chunk that has closed, if it is after `round` and the group's policy
  // does not wait for all members; otherwise 0.
  Round newest_round{};

  friend bool operator==(const UpdateHeader&, const UpdateHeader&) = default;
};

// Returns the bytes of the message that precede the payload's first byte. If `payload_bytes` is 0,
// these are the whole message.
std::string EncodeHeader(const PushHeader& header, size_t payload_bytes);
std::string EncodeHeader(const UpdateHeader& header, size_t payload_bytes);

// A received message. `payload` points into the memory that the decoder was given, which must
// outlive it.
struct PushFrame {
  PushHeader header;
  Pieces payload;
};
struct UpdateFrame {
  UpdateHeader header;
  Pieces payload;
};

// Decodes a message. Like protobuf, skips unknown fields; if a field that is not repeated occurs
// several times, uses the last value, or merges the values if they are messages (except for
// `error`, of which the last one is used).
//
// Errors:
//   InvalidArgument  the bytes are not such a message; the error has the position of the fault
absl::StatusOr<PushFrame> DecodePush(absl::Span<const absl::Span<const std::byte>> message);
absl::StatusOr<UpdateFrame> DecodeUpdate(absl::Span<const absl::Span<const std::byte>> message);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_WIRE_FRAME_H_
