// Fields are written in the order of their numbers, and fields with their default are left out.
// This is what protobuf's own encoder does, so the bytes are the same.

#include <bit>
#include <cstring>

#include "common/wire/fields.h"
#include "common/wire/frame.h"

namespace syncgrads {
namespace {

using wire::Type;

class Writer {
 public:
  void Varint(uint32_t field, uint64_t value) {
    if (value == 0) return;
    Tag(field, Type::kVarint);
    RawVarint(value);
  }

  void Fixed64(uint32_t field, uint64_t value) {
    if (value == 0) return;
    Tag(field, Type::kFixed64);
    for (int byte = 0; byte < 8; ++byte) out_.push_back(static_cast<char>(value >> (8 * byte)));
  }

  void Double(uint32_t field, double value) { Fixed64(field, std::bit_cast<uint64_t>(value)); }

  void Bytes(uint32_t field, const std::string& value) {
    if (value.empty()) return;
    Message(field, value);
  }

  // Writes a nested message that is set. Unlike Bytes, also writes an empty value.
  void Message(uint32_t field, const std::string& value) {
    PayloadFollows(field, value.size());
    out_ += value;
  }

  void Packed(uint32_t field, const std::vector<uint32_t>& values) {
    if (values.empty()) return;
    Writer packed;
    for (uint32_t value : values) packed.RawVarint(value);
    Message(field, packed.out_);
  }

  // Writes the tag and the length of a value of `size` bytes. The caller writes the value itself.
  void PayloadFollows(uint32_t field, uint64_t size) {
    Tag(field, Type::kLengthDelimited);
    RawVarint(size);
  }

  std::string Take() && { return std::move(out_); }

 private:
  void Tag(uint32_t field, Type type) { RawVarint(field << 3 | static_cast<uint32_t>(type)); }

  void RawVarint(uint64_t value) {
    while (value >= 0x80) {
      out_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    out_.push_back(static_cast<char>(value));
  }

  std::string out_;
};

std::string Encode(const DataHello& hello) {
  Writer out;
  out.Varint(wire::kHelloProtocolVersion, hello.protocol_version);
  out.Bytes(wire::kHelloJob, hello.job);
  out.Bytes(wire::kHelloToken, hello.token);
  out.Varint(wire::kHelloMember, ToNumber(hello.member));
  out.Fixed64(wire::kHelloIncarnation, ToNumber(hello.incarnation));
  out.Bytes(wire::kHelloHostId, hello.host_id);
  out.Bytes(wire::kHelloMemberSecret, hello.member_secret);
  return std::move(out).Take();
}

std::string Encode(const SharedPiece& piece) {
  Writer out;
  out.Varint(wire::kPieceRegion, piece.region);
  out.Varint(wire::kPieceOffset, piece.offset);
  out.Varint(wire::kPieceLength, piece.length);
  return std::move(out).Take();
}

std::string Encode(const DataWelcome& welcome) {
  Writer out;
  out.Bytes(wire::kWelcomeSocket, welcome.socket);
  out.Bytes(wire::kWelcomeRefusal, welcome.refusal);
  out.Bytes(wire::kWelcomeStream, welcome.stream);
  return std::move(out).Take();
}

std::string Encode(const absl::Status& error) {
  Writer out;
  out.Varint(wire::kErrorCode, static_cast<uint64_t>(error.code()));
  out.Bytes(wire::kErrorMessage, std::string(error.message()));
  return std::move(out).Take();
}

}  // namespace

std::string EncodeHeader(const PushHeader& header, size_t payload_bytes) {
  Writer out;
  if (header.hello.has_value()) out.Message(wire::kPushHello, Encode(*header.hello));
  out.Varint(wire::kPushGeneration, ToNumber(header.generation));
  out.Varint(wire::kPushGroup, ToNumber(header.group));
  out.Varint(wire::kPushChunk, ToNumber(header.chunk));
  out.Varint(wire::kPushRound, ToNumber(header.round));
  out.Varint(wire::kPushMember, ToNumber(header.member));
  out.Fixed64(wire::kPushIncarnation, ToNumber(header.incarnation));
  out.Varint(wire::kPushEpoch, header.epoch);
  out.Varint(wire::kPushCodec, static_cast<uint64_t>(header.codec));
  out.Double(wire::kPushWeight, header.weight);
  out.Varint(wire::kPushSkip, header.skip ? 1 : 0);
  out.Packed(wire::kPushAbsentSpans, header.absent_spans);
  out.Varint(wire::kPushWithoutResult, header.without_result ? 1 : 0);
  for (const SharedPiece& piece : header.shared) out.Message(wire::kPushShared, Encode(piece));
  if (payload_bytes > 0) out.PayloadFollows(wire::kPayload, payload_bytes);
  return std::move(out).Take();
}

std::string EncodeHeader(const UpdateHeader& header, size_t payload_bytes) {
  Writer out;
  out.Varint(wire::kUpdateGeneration, ToNumber(header.generation));
  out.Varint(wire::kUpdateGroup, ToNumber(header.group));
  out.Varint(wire::kUpdateChunk, ToNumber(header.chunk));
  out.Varint(wire::kUpdateRound, ToNumber(header.round));
  out.Varint(wire::kUpdateEpoch, header.epoch);
  out.Varint(wire::kUpdateCodec, static_cast<uint64_t>(header.codec));
  out.Packed(wire::kUpdateCounts, header.counts);
  out.Packed(wire::kUpdateContributors, header.contributors);
  if (!header.error.ok()) out.Message(wire::kUpdateError, Encode(header.error));
  if (header.welcome.has_value()) out.Message(wire::kUpdateWelcome, Encode(*header.welcome));
  if (header.shared.has_value()) out.Message(wire::kUpdateShared, Encode(*header.shared));
  out.Varint(wire::kUpdateNewestRound, ToNumber(header.newest_round));
  out.Packed(wire::kUpdateLeftOut, header.left_out);
  if (payload_bytes > 0) out.PayloadFollows(wire::kPayload, payload_bytes);
  return std::move(out).Take();
}

}  // namespace syncgrads
