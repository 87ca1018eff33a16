#include "common/wire/frame.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/data.pb.h"
#include "tests/common/expect_error.h"
#include "tests/common/wire/random_frame.h"

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20240701;
constexpr int kFrames = 2000;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

v1::PushChunk ProtoOf(const PushHeader& header, const std::string& payload) {
  v1::PushChunk proto;
  if (header.hello.has_value()) {
    v1::DataHello& hello = *proto.mutable_hello();
    hello.set_protocol_version(header.hello->protocol_version);
    hello.set_job(header.hello->job);
    hello.set_token(header.hello->token);
    hello.set_member(ToNumber(header.hello->member));
    hello.set_incarnation(ToNumber(header.hello->incarnation));
    hello.set_host_id(header.hello->host_id);
  }
  proto.set_generation(ToNumber(header.generation));
  proto.set_group(ToNumber(header.group));
  proto.set_chunk(ToNumber(header.chunk));
  proto.set_round(ToNumber(header.round));
  proto.set_member(ToNumber(header.member));
  proto.set_incarnation(ToNumber(header.incarnation));
  proto.set_epoch(header.epoch);
  proto.set_codec(static_cast<v1::Codec>(header.codec));
  proto.set_weight(header.weight);
  proto.set_skip(header.skip);
  proto.mutable_absent_spans()->Assign(header.absent_spans.begin(), header.absent_spans.end());
  proto.set_without_result(header.without_result);
  for (const SharedPiece& piece : header.shared) {
    v1::SharedPiece& out = *proto.add_shared();
    out.set_region(piece.region);
    out.set_offset(piece.offset);
    out.set_length(piece.length);
  }
  proto.set_payload(payload);
  return proto;
}

v1::UpdateChunk ProtoOf(const UpdateHeader& header, const std::string& payload) {
  v1::UpdateChunk proto;
  proto.set_generation(ToNumber(header.generation));
  proto.set_group(ToNumber(header.group));
  proto.set_chunk(ToNumber(header.chunk));
  proto.set_round(ToNumber(header.round));
  proto.set_epoch(header.epoch);
  proto.set_codec(static_cast<v1::Codec>(header.codec));
  proto.mutable_counts()->Assign(header.counts.begin(), header.counts.end());
  proto.mutable_contributors()->Assign(header.contributors.begin(), header.contributors.end());
  if (!header.error.ok()) {
    proto.mutable_error()->set_code(static_cast<int>(header.error.code()));
    proto.mutable_error()->set_message(std::string(header.error.message()));
  }
  if (header.welcome.has_value()) {
    proto.mutable_welcome()->set_socket(header.welcome->socket);
    proto.mutable_welcome()->set_refusal(header.welcome->refusal);
    proto.mutable_welcome()->set_local_stream(header.welcome->stream);
  }
  proto.mutable_left_out()->Assign(header.left_out.begin(), header.left_out.end());
  if (header.shared.has_value()) {
    proto.mutable_shared()->set_region(header.shared->region);
    proto.mutable_shared()->set_offset(header.shared->offset);
    proto.mutable_shared()->set_length(header.shared->length);
  }
  proto.set_newest_round(ToNumber(header.newest_round));
  proto.set_payload(payload);
  return proto;
}

// Decodes a message in one piece. `bytes` must outlive the result.
absl::StatusOr<PushFrame> DecodedPush(const std::string& bytes) {
  return DecodePush({BytesOf(bytes)});
}

// Returns a message with most of the fields of a push.
std::string SomePush() {
  PushHeader header;
  header.hello = DataHello{1, "iris", "secret", MemberId{3}, Incarnation{0x0102030405060708}, "h"};
  header.generation = Generation{300};
  header.chunk = ChunkId{7};
  header.weight = 2.5;
  header.absent_spans = {0, 300, 70000};
  header.shared = {{1, 4096, 1 << 20}};
  return EncodeHeader(header, 5) + "12345";
}

// Returns one encoded field. `rest` is everything after the tag; for a varint, its bytes.
std::string Field(uint32_t number, uint32_t type, const std::string& rest) {
  return static_cast<char>(number << 3 | type) + rest;
}

TEST(PushFrameTest, IsWhatProtobufWouldWriteByteForByte) {
  RandomFrames frames(kSeed);
  for (int i = 0; i < kFrames; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", frame ", i));
    const PushHeader header = frames.Push();
    const std::string payload = frames.Payload();
    ASSERT_EQ(EncodeHeader(header, payload.size()) + payload,
              ProtoOf(header, payload).SerializeAsString());
  }
}

TEST(UpdateFrameTest, IsWhatProtobufWouldWriteByteForByte) {
  RandomFrames frames(kSeed);
  for (int i = 0; i < kFrames; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", frame ", i));
    const UpdateHeader header = frames.Update();
    const std::string payload = frames.Payload();
    ASSERT_EQ(EncodeHeader(header, payload.size()) + payload,
              ProtoOf(header, payload).SerializeAsString());
  }
}

TEST(PushFrameTest, IsReadByGeneratedCodeAndReadsWhatGeneratedCodeWrote) {
  RandomFrames frames(kSeed + 1);
  for (int i = 0; i < kFrames; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed + 1, ", frame ", i));
    const PushHeader header = frames.Push();
    const std::string payload = frames.Payload();
    const v1::PushChunk proto = ProtoOf(header, payload);

    v1::PushChunk parsed;
    ASSERT_TRUE(parsed.ParseFromString(EncodeHeader(header, payload.size()) + payload));
    ASSERT_EQ(parsed.SerializeAsString(), proto.SerializeAsString());

    const std::string theirs = proto.SerializeAsString();
    const absl::StatusOr<PushFrame> decoded = DecodedPush(theirs);
    ASSERT_THAT(decoded, IsOk());
    ASSERT_EQ(decoded->header, header);
    ASSERT_EQ(TextOf(decoded->payload), payload);
  }
}

TEST(UpdateFrameTest, IsReadByGeneratedCodeAndReadsWhatGeneratedCodeWrote) {
  RandomFrames frames(kSeed + 2);
  for (int i = 0; i < kFrames; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed + 2, ", frame ", i));
    const UpdateHeader header = frames.Update();
    const std::string payload = frames.Payload();
    const v1::UpdateChunk proto = ProtoOf(header, payload);

    v1::UpdateChunk parsed;
    ASSERT_TRUE(parsed.ParseFromString(EncodeHeader(header, payload.size()) + payload));
    ASSERT_EQ(parsed.SerializeAsString(), proto.SerializeAsString());

    const std::string theirs = proto.SerializeAsString();
    const absl::StatusOr<UpdateFrame> decoded = DecodeUpdate({BytesOf(theirs)});
    ASSERT_THAT(decoded, IsOk());
    ASSERT_EQ(decoded->header, header);
    ASSERT_EQ(TextOf(decoded->payload), payload);
  }
}

TEST(PushFrameTest, IsReadWhereverItsPiecesAreCut) {
  const std::string bytes = SomePush();
  const absl::StatusOr<PushFrame> whole = DecodedPush(bytes);
  ASSERT_THAT(whole, IsOk());
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); ++second) {
      SCOPED_TRACE(absl::StrCat("cut at ", first, " and ", second));
      const absl::Span<const std::byte> all = BytesOf(bytes);
      const Pieces pieces = {all.first(first), all.subspan(first, second - first),
                             all.subspan(second)};
      const absl::StatusOr<PushFrame> decoded = DecodePush(pieces);
      ASSERT_THAT(decoded, IsOk());
      ASSERT_EQ(decoded->header, whole->header);
      ASSERT_EQ(TextOf(decoded->payload), "12345");
      for (absl::Span<const std::byte> piece : decoded->payload) ASSERT_FALSE(piece.empty());
    }
  }
}

TEST(PushFrameTest, IsReadFromPiecesOfOneByteEach) {
  const std::string bytes = SomePush();
  Pieces pieces;
  for (const std::byte& byte : BytesOf(bytes)) pieces.push_back({&byte, 1});
  const absl::StatusOr<PushFrame> decoded = DecodePush(pieces);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header, DecodedPush(bytes)->header);
  EXPECT_EQ(TextOf(decoded->payload), "12345");
}

TEST(PushFrameTest, PointsIntoTheMessageForThePayload) {
  const std::string bytes = SomePush();
  const absl::StatusOr<PushFrame> decoded = DecodedPush(bytes);
  ASSERT_THAT(decoded, IsOk());
  ASSERT_EQ(decoded->payload.size(), 1u);
  EXPECT_EQ(decoded->payload[0].data(), BytesOf(bytes).data() + bytes.size() - 5);
}

TEST(PushFrameTest, IsReadWithThePayloadAnywhere) {
  const std::string payload = Field(15, 2,
                                    "\x03"
                                    "abc");
  const absl::StatusOr<PushFrame> decoded =
      DecodedPush(payload + Field(4, 0, "\x09") + Field(5, 0, "\x02"));
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.chunk, ChunkId{9});
  EXPECT_EQ(decoded->header.round, Round{2});
}

TEST(PushFrameTest, TakesTheLastOfAFieldThatIsRepeated) {
  const std::string bytes = Field(4, 0, "\x09") +
                            Field(15, 2,
                                  "\x01"
                                  "a") +
                            Field(4, 0, "\x05") +
                            Field(15, 2,
                                  "\x02"
                                  "bc");
  const absl::StatusOr<PushFrame> decoded = DecodedPush(bytes);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.chunk, ChunkId{5});
  EXPECT_EQ(TextOf(decoded->payload), "bc");
}

TEST(PushFrameTest, SkipsFieldsThatItDoesNotKnow) {
  // Field 1000, with every wire type.
  const std::string unknown =
      "\xc0\x3e\xff\x01"  // a varint
      "\xc1\x3ezzzzzzzz"  // 64 bits
      "\xc5\x3ezzzz"      // 32 bits
      "\xc2\x3e\x03zzz";  // bytes
  const std::string bytes = unknown + SomePush() + unknown;
  const absl::StatusOr<PushFrame> decoded = DecodedPush(bytes);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header, DecodedPush(SomePush())->header);
  v1::PushChunk proto;
  EXPECT_TRUE(proto.ParseFromString(bytes));
}

TEST(PushFrameTest, SkipsAKnownFieldOfAnotherKind) {
  // The field `chunk` with 32 bits, and `absent_spans` with 64 bits.
  const std::string bytes = Field(4, 5, std::string(4, '\1')) + Field(12, 1, std::string(8, '\1'));
  const absl::StatusOr<PushFrame> decoded = DecodedPush(bytes);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header, PushHeader{});
}

TEST(PushFrameTest, ReadsAListThatIsNotPacked) {
  const absl::StatusOr<PushFrame> decoded =
      DecodedPush(Field(12, 0, "\x01") + Field(12, 2, "\x02\x02\x03") + Field(12, 0, "\x09"));
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.absent_spans, (std::vector<uint32_t>{1, 2, 3, 9}));
}

TEST(PushFrameTest, MergesAMessageThatIsRepeatedAsProtobufDoes) {
  PushHeader first, second;
  first.hello = DataHello{1, "iris", "", MemberId{3}, Incarnation{4}, ""};
  second.hello = DataHello{0, "", "secret", MemberId{5}, Incarnation{}, ""};
  const std::string bytes = EncodeHeader(first, 0) + EncodeHeader(second, 0);
  const absl::StatusOr<PushFrame> decoded = DecodedPush(bytes);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.hello,
            (DataHello{1, "iris", "secret", MemberId{5}, Incarnation{4}, ""}));
}

TEST(PushFrameTest, CutOffAtAnyByteIsAnErrorOrAMessageThatProtobufReadsToo) {
  const std::string bytes = SomePush();
  int errors = 0;
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(absl::StrCat("cut to ", length, " of ", bytes.size()));
    const std::string cut = bytes.substr(0, length);
    v1::PushChunk proto;
    const absl::StatusOr<PushFrame> decoded = DecodedPush(cut);
    ASSERT_EQ(decoded.ok(), proto.ParseFromString(cut)) << decoded.status();
    if (!decoded.ok()) {
      ++errors;
      ExpectError(decoded, kInvalid, {"malformed", absl::StrCat("of ", length)});
    }
  }
  EXPECT_GT(errors, static_cast<int>(bytes.size()) / 2);
}

TEST(PushFrameTest, RefusesANumberLongerThan64Bits) {
  const std::string ten = std::string(9, '\xff') + "\x01";
  EXPECT_EQ(DecodedPush(Field(5, 0, ten))->header.round, Round{~uint64_t{0}});
  const std::string eleven = std::string(10, '\xff') + "\x01";
  ExpectError(DecodedPush(Field(5, 0, eleven)), kInvalid, {"longer than 64 bits"});
  ExpectError(DecodedPush(eleven), kInvalid, {"longer than 64 bits"});
}

TEST(PushFrameTest, RefusesALengthBeyondTheMessageAndSaysBoth) {
  ExpectError(DecodedPush(Field(15, 2,
                                "\x05"
                                "abc")),
              kInvalid, {"5 bytes", "3 left"});
  ExpectError(DecodedPush(Field(15, 2, std::string(9, '\xff') + "\x01")), kInvalid,
              {"18446744073709551615 bytes", "0 left"});
  // In an embedded message: the outer message has enough bytes, the inner one does not.
  ExpectError(DecodedPush(Field(1, 2,
                                "\x03\x12\x7f"
                                "a") +
                          Field(15, 2,
                                "\x03"
                                "abc")),
              kInvalid, {"127 bytes", "1 left"});
}

TEST(PushFrameTest, RefusesFieldNumbersAndKindsThatCannotBe) {
  ExpectError(DecodedPush(std::string(1, '\0')), kInvalid, {"number 0"});
  ExpectError(DecodedPush("\x80\x80\x80\x80\x80\x01"), kInvalid, {"number"});
  ExpectError(DecodedPush(Field(4, 3, "")), kInvalid, {"wire type 3"});
  ExpectError(DecodedPush(Field(4, 7, "")), kInvalid, {"wire type 7"});
}

TEST(PushFrameTest, RefusesAListLongerThanAnyChunkHasSpans) {
  const std::string spans((4 << 20) / 2 + 1, '\x01');
  std::string length;
  for (size_t left = spans.size(); left > 0; left >>= 7) {
    length += static_cast<char>((left & 0x7f) | (left >= 0x80 ? 0x80 : 0));
  }
  ExpectError(DecodedPush(Field(12, 2, length + spans)), kInvalid, {"too long"});
}

TEST(PushFrameTest, RefusesMorePiecesOfSharedMemoryThanTheLimit) {
  std::string pieces;
  for (size_t i = 0; i < kMaxSharedPieces; ++i) pieces += std::string("\x72\0", 2);
  EXPECT_EQ(DecodedPush(pieces)->header.shared.size(), kMaxSharedPieces);
  ExpectError(DecodedPush(pieces + std::string("\x72\0", 2)), kInvalid,
              {"more than 16384 pieces of shared memory"});
}

TEST(UpdateFrameTest, ReadsAnErrorWithoutACodeAsOneAllTheSame) {
  const absl::StatusOr<UpdateFrame> decoded = DecodeUpdate({BytesOf(Field(9, 2, {"\0", 1}))});
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.error.code(), absl::StatusCode::kUnknown);
}

TEST(UpdateFrameTest, ReadsAnErrorOfACodeThatDoesNotExistAsUnknown) {
  const std::string bytes = Field(9, 2,
                                  "\x05\x08\x63\x12\x01"
                                  "a");
  const absl::StatusOr<UpdateFrame> decoded = DecodeUpdate({BytesOf(bytes)});
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->header.error, absl::UnknownError("a"));
}

}  // namespace
}  // namespace syncgrads
