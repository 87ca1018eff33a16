// A message arrives in several pieces, which may end at any byte. The reader goes through them. It
// copies numbers and short strings, and returns the payload as pieces.

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/fields.h"
#include "common/wire/frame.h"

namespace syncgrads {
namespace {

using wire::Type;

// Maximum length of a list: the maximum number of spans of a chunk, with one 2-byte element each.
constexpr size_t kMaxListed = (4 << 20) / 2;

class Reader {
 public:
  explicit Reader(absl::Span<const absl::Span<const std::byte>> pieces)
      : pieces_(pieces), left_(TotalBytes(pieces)), size_(left_) {}

  bool done() const { return left_ == 0; }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed message: ", what, " at byte ", size_ - left_, " of ", size_));
  }

  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return Error("a number is truncated");
      const uint64_t byte = static_cast<uint64_t>(NextByte());
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return Error("a number is longer than 64 bits");
  }

  absl::StatusOr<uint64_t> Fixed(int bytes) {
    if (left_ < static_cast<size_t>(bytes)) return Error("a number is truncated");
    uint64_t value = 0;
    for (int byte = 0; byte < bytes; ++byte) {
      value |= static_cast<uint64_t>(NextByte()) << (8 * byte);
    }
    return value;
  }

  // Returns the next length-delimited value as pieces of the message.
  absl::StatusOr<Pieces> Delimited() {
    SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t length, Varint());
    if (length > left_) {
      return Error(absl::StrCat("a field of ", length, " bytes, with ", left_, " left,"));
    }
    Pieces taken;
    for (uint64_t wanted = length; wanted > 0;) {
      const absl::Span<const std::byte> piece = pieces_[0].subspan(offset_);
      const size_t part = std::min<uint64_t>(wanted, piece.size());
      if (part > 0) taken.push_back(piece.first(part));
      wanted -= part;
      Advance(part);
    }
    return taken;
  }

  absl::Status Skip(Type type) {
    switch (type) {
      case Type::kVarint:
        return Varint().status();
      case Type::kFixed64:
        return Fixed(8).status();
      case Type::kFixed32:
        return Fixed(4).status();
      case Type::kLengthDelimited:
        return Delimited().status();
    }
    return Error(absl::StrCat("a field of unknown wire type ", static_cast<uint32_t>(type)));
  }

 private:
  std::byte NextByte() {
    while (offset_ == pieces_[0].size()) Advance(0);
    const std::byte byte = pieces_[0][offset_];
    Advance(1);
    return byte;
  }

  // Moves the position by `bytes` within the first piece. At the end of a piece, goes to the next
  // one.
  void Advance(size_t bytes) {
    offset_ += bytes;
    left_ -= bytes;
    while (!pieces_.empty() && offset_ == pieces_[0].size()) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }

  absl::Span<const absl::Span<const std::byte>> pieces_;
  size_t offset_ = 0;  // the position in the first piece
  size_t left_;
  size_t size_;
};

std::string Joined(const Pieces& pieces) {
  std::string joined;
  joined.reserve(TotalBytes(pieces));
  for (absl::Span<const std::byte> piece : pieces) {
    joined.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return joined;
}

// Calls `field(number, type, reader)` for each field of the message. The callback reads the field's
// value and returns true, or returns false, and the field is skipped.
template <typename Field>
absl::Status ForEachField(absl::Span<const absl::Span<const std::byte>> message, Field field) {
  Reader reader(message);
  while (!reader.done()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t tag, reader.Varint());
    const uint64_t number = tag >> 3;
    if (number == 0 || number > (uint64_t{1} << 29) - 1) {
      return reader.Error(absl::StrCat("a field with the invalid number ", number));
    }
    const Type type{static_cast<uint32_t>(tag & 7)};
    SYNCGRADS_ASSIGN_OR_RETURN(const bool known,
                               field(static_cast<uint32_t>(number), type, reader));
    if (!known) SYNCGRADS_RETURN_IF_ERROR(reader.Skip(type));
  }
  return absl::OkStatus();
}

// Each Read... function below reads one value if the field has the right wire type. Otherwise it
// returns false, and the field is skipped as if it were unknown, as in protobuf.

template <typename Number>
absl::StatusOr<bool> ReadVarint(Type type, Reader& reader, Number& out) {
  if (type != Type::kVarint) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t value, reader.Varint());
  if constexpr (std::is_same_v<Number, bool>) {
    out = value != 0;
  } else if constexpr (std::is_enum_v<Number>) {
    out = Number{static_cast<std::underlying_type_t<Number>>(value)};
  } else {
    out = static_cast<Number>(value);
  }
  return true;
}

absl::StatusOr<bool> ReadFixed64(Type type, Reader& reader, uint64_t& out) {
  if (type != Type::kFixed64) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(out, reader.Fixed(8));
  return true;
}

absl::StatusOr<bool> ReadIncarnation(Type type, Reader& reader, Incarnation& out) {
  uint64_t value = ToNumber(out);
  SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadFixed64(type, reader, value));
  out = Incarnation{value};
  return known;
}

absl::StatusOr<bool> ReadDouble(Type type, Reader& reader, double& out) {
  uint64_t bits = std::bit_cast<uint64_t>(out);
  SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadFixed64(type, reader, bits));
  out = std::bit_cast<double>(bits);
  return known;
}

absl::StatusOr<bool> ReadBytes(Type type, Reader& reader, Pieces& out) {
  if (type != Type::kLengthDelimited) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(out, reader.Delimited());
  return true;
}

absl::StatusOr<bool> ReadString(Type type, Reader& reader, std::string& out) {
  Pieces bytes;
  SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadBytes(type, reader, bytes));
  if (known) out = Joined(bytes);
  return known;
}

// Reads a repeated number, which a sender may encode packed or one at a time.
absl::StatusOr<bool> ReadNumbers(Type type, Reader& reader, std::vector<uint32_t>& out) {
  const auto append = [&out](Reader& from) -> absl::Status {
    if (out.size() == kMaxListed) return from.Error("a list is too long");
    SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t value, from.Varint());
    out.push_back(static_cast<uint32_t>(value));
    return absl::OkStatus();
  };
  if (type == Type::kVarint) {
    SYNCGRADS_RETURN_IF_ERROR(append(reader));
    return true;
  }
  Pieces packed;
  SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadBytes(type, reader, packed));
  Reader values(packed);
  while (!values.done()) SYNCGRADS_RETURN_IF_ERROR(append(values));
  return known;
}

// Reads a nested message. If it occurs several times, the values are merged field by field.
template <typename Message>
absl::StatusOr<bool> ReadMessage(Type type, Reader& reader, std::optional<Message>& out,
                                 absl::Status (*decode)(const Pieces&, Message&)) {
  Pieces message;
  SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadBytes(type, reader, message));
  if (!known) return false;
  if (!out.has_value()) out.emplace();
  SYNCGRADS_RETURN_IF_ERROR(decode(message, *out));
  return true;
}

absl::Status DecodeHello(const Pieces& message, DataHello& hello) {
  return ForEachField(message,
                      [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
                        switch (field) {
                          case wire::kHelloProtocolVersion:
                            return ReadVarint(type, reader, hello.protocol_version);
                          case wire::kHelloJob:
                            return ReadString(type, reader, hello.job);
                          case wire::kHelloToken:
                            return ReadString(type, reader, hello.token);
                          case wire::kHelloMember:
                            return ReadVarint(type, reader, hello.member);
                          case wire::kHelloIncarnation:
                            return ReadIncarnation(type, reader, hello.incarnation);
                          case wire::kHelloHostId:
                            return ReadString(type, reader, hello.host_id);
                          case wire::kHelloMemberSecret:
                            return ReadString(type, reader, hello.member_secret);
                        }
                        return false;
                      });
}

absl::Status DecodePiece(const Pieces& message, SharedPiece& piece) {
  return ForEachField(message,
                      [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
                        switch (field) {
                          case wire::kPieceRegion:
                            return ReadVarint(type, reader, piece.region);
                          case wire::kPieceOffset:
                            return ReadVarint(type, reader, piece.offset);
                          case wire::kPieceLength:
                            return ReadVarint(type, reader, piece.length);
                        }
                        return false;
                      });
}

absl::Status DecodeWelcome(const Pieces& message, DataWelcome& welcome) {
  return ForEachField(message,
                      [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
                        switch (field) {
                          case wire::kWelcomeSocket:
                            return ReadString(type, reader, welcome.socket);
                          case wire::kWelcomeRefusal:
                            return ReadString(type, reader, welcome.refusal);
                          case wire::kWelcomeStream:
                            return ReadString(type, reader, welcome.stream);
                        }
                        return false;
                      });
}

absl::Status DecodeError(const Pieces& message, absl::Status& error) {
  int32_t code = 0;
  std::string text;
  SYNCGRADS_RETURN_IF_ERROR(
      ForEachField(message, [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
        switch (field) {
          case wire::kErrorCode:
            return ReadVarint(type, reader, code);
          case wire::kErrorMessage:
            return ReadString(type, reader, text);
        }
        return false;
      }));
  // If the error is set, the result is never OK, even if its code is not an error.
  if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    code = static_cast<int>(absl::StatusCode::kUnknown);
  }
  error = absl::Status(static_cast<absl::StatusCode>(code), text);
  return absl::OkStatus();
}

}  // namespace

size_t TotalBytes(absl::Span<const absl::Span<const std::byte>> pieces) {
  size_t total = 0;
  for (absl::Span<const std::byte> piece : pieces) total += piece.size();
  return total;
}

absl::StatusOr<PushFrame> DecodePush(absl::Span<const absl::Span<const std::byte>> message) {
  PushFrame frame;
  PushHeader& header = frame.header;
  SYNCGRADS_RETURN_IF_ERROR(
      ForEachField(message, [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
        switch (field) {
          case wire::kPushHello:
            return ReadMessage(type, reader, header.hello, DecodeHello);
          case wire::kPushGeneration:
            return ReadVarint(type, reader, header.generation);
          case wire::kPushGroup:
            return ReadVarint(type, reader, header.group);
          case wire::kPushChunk:
            return ReadVarint(type, reader, header.chunk);
          case wire::kPushRound:
            return ReadVarint(type, reader, header.round);
          case wire::kPushMember:
            return ReadVarint(type, reader, header.member);
          case wire::kPushIncarnation:
            return ReadIncarnation(type, reader, header.incarnation);
          case wire::kPushEpoch:
            return ReadVarint(type, reader, header.epoch);
          case wire::kPushCodec:
            return ReadVarint(type, reader, header.codec);
          case wire::kPushWeight:
            return ReadDouble(type, reader, header.weight);
          case wire::kPushSkip:
            return ReadVarint(type, reader, header.skip);
          case wire::kPushAbsentSpans:
            return ReadNumbers(type, reader, header.absent_spans);
          case wire::kPushWithoutResult:
            return ReadVarint(type, reader, header.without_result);
          case wire::kPushShared: {
            if (header.shared.size() == kMaxSharedPieces) {
              return reader.Error(
                  absl::StrCat("more than ", kMaxSharedPieces, " pieces of shared memory"));
            }
            std::optional<SharedPiece> piece;
            SYNCGRADS_ASSIGN_OR_RETURN(const bool known,
                                       ReadMessage(type, reader, piece, DecodePiece));
            if (known) header.shared.push_back(*piece);
            return known;
          }
          case wire::kPayload:
            return ReadBytes(type, reader, frame.payload);
        }
        return false;
      }));
  return frame;
}

absl::StatusOr<UpdateFrame> DecodeUpdate(absl::Span<const absl::Span<const std::byte>> message) {
  UpdateFrame frame;
  UpdateHeader& header = frame.header;
  SYNCGRADS_RETURN_IF_ERROR(
      ForEachField(message, [&](uint32_t field, Type type, Reader& reader) -> absl::StatusOr<bool> {
        switch (field) {
          case wire::kUpdateGeneration:
            return ReadVarint(type, reader, header.generation);
          case wire::kUpdateGroup:
            return ReadVarint(type, reader, header.group);
          case wire::kUpdateChunk:
            return ReadVarint(type, reader, header.chunk);
          case wire::kUpdateRound:
            return ReadVarint(type, reader, header.round);
          case wire::kUpdateEpoch:
            return ReadVarint(type, reader, header.epoch);
          case wire::kUpdateCodec:
            return ReadVarint(type, reader, header.codec);
          case wire::kUpdateCounts:
            return ReadNumbers(type, reader, header.counts);
          case wire::kUpdateContributors:
            return ReadNumbers(type, reader, header.contributors);
          case wire::kUpdateError: {
            Pieces error;
            SYNCGRADS_ASSIGN_OR_RETURN(const bool known, ReadBytes(type, reader, error));
            if (known) SYNCGRADS_RETURN_IF_ERROR(DecodeError(error, header.error));
            return known;
          }
          case wire::kUpdateWelcome:
            return ReadMessage(type, reader, header.welcome, DecodeWelcome);
          case wire::kUpdateShared:
            return ReadMessage(type, reader, header.shared, DecodePiece);
          case wire::kUpdateLeftOut:
            return ReadNumbers(type, reader, header.left_out);
          case wire::kUpdateNewestRound:
            return ReadVarint(type, reader, header.newest_round);
          case wire::kPayload:
            return ReadBytes(type, reader, frame.payload);
        }
        return false;
      }));
  return frame;
}

}  // namespace syncgrads
