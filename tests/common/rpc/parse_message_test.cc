#include "common/rpc/parse_message.h"

#include <grpcpp/support/slice.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  // In two slices, between which a field may be cut.
  const size_t half = bytes.size() / 2;
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, half)),
                                grpc::Slice(bytes.substr(half))};
  return grpc::ByteBuffer(slices, 2);
}

std::string Repeated(const std::string& bytes, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += bytes;
  return all;
}

// A message that is long enough to be counted.
v1::WorkerSignal LongSignal(int tensors) {
  v1::WorkerSignal signal;
  v1::GroupSpec& spec = *signal.mutable_register_group()->mutable_spec();
  spec.set_name(std::string(kParsedAnyway, 'x'));
  for (int t = 0; t < tensors; ++t) {
    v1::TensorSpec& tensor = *spec.add_tensors();
    tensor.set_name(absl::StrCat("layer", t));
    for (int64_t axis : {3, 5, 7}) tensor.add_shape(axis);
  }
  return signal;
}

TEST(ParseMessageTest, AMessageOfAsManyPartsAsAreAllowedIsParsed) {
  const v1::WorkerSignal sent = LongSignal(100);
  grpc::ByteBuffer bytes = BufferOf(sent.SerializeAsString());
  v1::WorkerSignal signal;
  // The registration, its spec, and the tensors. Names and shapes are no parts.
  ASSERT_THAT(ParseMessage(bytes, 102, signal), IsOk());
  EXPECT_EQ(signal.SerializeAsString(), sent.SerializeAsString());
}

TEST(ParseMessageTest, OneOfMorePartsIsRefused) {
  grpc::ByteBuffer bytes = BufferOf(LongSignal(100).SerializeAsString());
  const size_t length = bytes.Length();
  v1::WorkerSignal signal;
  ExpectError(ParseMessage(bytes, 101, signal), absl::StatusCode::kResourceExhausted,
              {"WorkerSignal", absl::StrCat(length, " bytes"), "more than 101 parts"});
  EXPECT_EQ(signal.kind_case(), v1::WorkerSignal::KIND_NOT_SET);
}

TEST(ParseMessageTest, ElementsAndFieldsOfAnyKindCount) {
  const std::string text(kParsedAnyway, 'x');
  v1::ProbeRequest padded;
  padded.set_padding(text);
  const std::string probe = padded.SerializeAsString();
  v1::TraceReport report;
  report.mutable_process()->mutable_part()->add_names(text);
  const std::string trace = report.SerializeAsString();
  struct Case {
    const char* what;
    std::string bytes;
  };
  const Case cases[] = {
      {"a single string is none", probe},
      {"unknown numbers", probe + Repeated("\x78\x01", 10)},                         // 15
      {"unknown fixed numbers", probe + Repeated("\x7d\x01\x02\x03\x04", 10)},       // 15
      {"unknown bytes", probe + Repeated(std::string("\x7a\x00", 2), 10)},           // 15
      {"a number with a length", probe + Repeated(std::string("\x12\x00", 2), 10)},  // reply_bytes
      {"bytes without a length", probe + Repeated("\x08\x01", 10)},                  // padding
      {"a number of another width", probe + Repeated("\x15\x01\x02\x03\x04", 10)},   // reply_bytes
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const bool has_parts = one.bytes != probe;
    grpc::ByteBuffer few = BufferOf(one.bytes), enough = BufferOf(one.bytes);
    v1::ProbeRequest request;
    EXPECT_EQ(absl::IsResourceExhausted(ParseMessage(few, 9, request)), has_parts);
    EXPECT_THAT(ParseMessage(enough, 10, request), IsOk());
    EXPECT_EQ(request.padding(), text);
  }
  grpc::ByteBuffer few = BufferOf(trace), enough = BufferOf(trace);
  ExpectError(ParseMessage(few, 2, report), absl::StatusCode::kResourceExhausted, {"TraceReport"});
  EXPECT_THAT(ParseMessage(enough, 3, report), IsOk()) << "the process, its part, and a name";
}

TEST(ParseMessageTest, AShortMessageIsParsedWhateverItHas) {
  grpc::ByteBuffer bytes = BufferOf(Repeated(std::string("\x7a\x00", 2), 100));
  v1::ProbeRequest request;
  EXPECT_THAT(ParseMessage(bytes, 0, request), IsOk());
}

TEST(ParseMessageTest, AMalformedMessageIsRefused) {
  const std::string text(kParsedAnyway, 'x');
  v1::ProbeRequest padded;
  padded.set_padding(text);
  const std::string probe = padded.SerializeAsString();
  for (const std::string& bytes :
       {std::string("\x0a\x05"), std::string("\x0a"), probe + "\x0a\x05",
        probe.substr(0, probe.size() - 1), probe + std::string("\x0a\xff\xff\xff\xff\x0f", 6)}) {
    grpc::ByteBuffer buffer = BufferOf(bytes);
    v1::ProbeRequest request;
    ExpectError(ParseMessage(buffer, 100, request), absl::StatusCode::kInvalidArgument,
                {absl::StrCat(bytes.size(), " bytes"), "not a valid ProbeRequest", "malformed"});
  }
}

// Groups are a wire type that proto3 does not have. One may have any number of parts.
TEST(ParseMessageTest, AGroupIsRefused) {
  v1::ProbeRequest request;
  request.set_padding(std::string(kParsedAnyway, 'x'));
  // The tags of field 15 that begin and end a group.
  const std::string bytes =
      request.SerializeAsString() + "\x7b" + Repeated("\x78\x01", 10) + "\x7c";
  grpc::ByteBuffer buffer = BufferOf(bytes);
  ExpectError(ParseMessage(buffer, 9, request), absl::StatusCode::kInvalidArgument, {"a group"});
}

TEST(ParseMessageTest, GroupsWithinGroupsAreRefused) {
  grpc::ByteBuffer buffer = BufferOf(std::string(kParsedAnyway + 2, '\x7b'));
  v1::TraceReport report;
  ExpectError(ParseMessage(buffer, 1 << 20, report), absl::StatusCode::kInvalidArgument,
              {"TraceReport"});
}

}  // namespace
}  // namespace syncgrads
