// The messages of the data plane, built and read around their payload.
//
// A frame on the wire is exactly the protobuf message of the same name
// (proto/data.proto), its `bytes payload` last: any gRPC client can speak it.
// Here the payload is never copied: a sender puts EncodeHeader's bytes in front
// of the tensor's memory, and a receiver gets pieces that point into the
// received buffers.

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

// Bytes in order, in one or more places.
using Pieces = absl::InlinedVector<absl::Span<const std::byte>, 4>;

size_t TotalBytes(absl::Span<const absl::Span<const std::byte>> pieces);

struct DataHello {
  uint32_t protocol_version = 0;
  std::string job;
  std::string token;
  MemberId member{};
  Incarnation incarnation{};
  std::string host_id;

  friend bool operator==(const DataHello&, const DataHello&) = default;
};

// A part of a shared region, in bytes.
struct SharedPiece {
  uint32_t region = 0;
  uint64_t offset = 0;
  uint64_t length = 0;

  friend bool operator==(const SharedPiece&, const SharedPiece&) = default;
};

struct DataWelcome {
  std::string socket;
  std::string refusal;
  std::string stream;

  friend bool operator==(const DataWelcome&, const DataWelcome&) = default;
};

// A PushChunk without its payload; see proto/data.proto for the fields.
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
  double weight = 0;  // 0 stands for 1
  bool skip = false;
  std::vector<uint32_t> absent_spans;
  bool without_result = false;
  std::vector<SharedPiece> shared;

  friend bool operator==(const PushHeader&, const PushHeader&) = default;
};

// An UpdateChunk without its payload.
struct UpdateHeader {
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};
  uint64_t epoch = 0;
  Codec codec = Codec::kRaw;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> contributors;
  // Not OK: the push was refused.
  absl::Status error;
  std::optional<DataWelcome> welcome;
  std::optional<SharedPiece> shared;
  std::vector<uint32_t> left_out;
  // 0: `round` is the newest, or its group's policy is not one of those.
  Round newest_round{};

  friend bool operator==(const UpdateHeader&, const UpdateHeader&) = default;
};

// Everything of the message that precedes the payload's first byte. With
// `payload_bytes` 0 this is the whole message.
std::string EncodeHeader(const PushHeader& header, size_t payload_bytes);
std::string EncodeHeader(const UpdateHeader& header, size_t payload_bytes);

// A message as it was received. `payload` points into the memory that was given
// to the decoder.
struct PushFrame {
  PushHeader header;
  Pieces payload;
};
struct UpdateFrame {
  UpdateHeader header;
  Pieces payload;
};

// Unknown fields are skipped, as protobuf does; for a field that is repeated
// though it may not be, the last one counts.
//
// Errors:
//   InvalidArgument  the bytes are no such message; says at which byte
absl::StatusOr<PushFrame> DecodePush(absl::Span<const absl::Span<const std::byte>> message);
absl::StatusOr<UpdateFrame> DecodeUpdate(absl::Span<const absl::Span<const std::byte>> message);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_WIRE_FRAME_H_
