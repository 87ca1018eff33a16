#include "common/local/message_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

using Kinds = std::vector<std::pair<MessageKind, std::string>>;

std::string BytesOf(MessageKind kind, const std::string& body) {
  const MessageHeaderBytes header = EncodeMessageHeader(kind, static_cast<uint32_t>(body.size()));
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(header.data()), header.size()), body);
}

// Passes the bytes to the reader, at most `at_once` at a time. Returns the messages that it reads.
absl::StatusOr<Kinds> ReadAll(MessageReader& reader, absl::string_view bytes, size_t at_once) {
  Kinds read;
  while (true) {
    absl::StatusOr<std::optional<MessageReader::Message>> next = reader.Next();
    if (!next.ok()) return next.status();
    if (next->has_value()) {
      const absl::Span<const std::byte> body = (*next)->body();
      read.emplace_back((*next)->kind,
                        std::string(reinterpret_cast<const char*>(body.data()), body.size()));
      continue;
    }
    if (bytes.empty()) return read;
    const absl::Span<std::byte> space = reader.Space();
    EXPECT_FALSE(space.empty());
    const size_t count = std::min({bytes.size(), at_once, space.size()});
    std::memcpy(space.data(), bytes.data(), count);
    reader.Filled(count);
    bytes.remove_prefix(count);
  }
}

TEST(MessageReaderTest, MessagesAreWholeHoweverTheirBytesArrive) {
  // Bodies that fit into the buffer with others, that fill it, and that do not fit.
  const Kinds sent = {{MessageKind::kReady, ""},
                      {MessageKind::kMessage, std::string(100, 'a')},
                      {MessageKind::kMessage, ""},
                      {MessageKind::kPing, ""},
                      {MessageKind::kMessage, std::string(512 - 8, 'b')},
                      {MessageKind::kMessage, std::string(100'000, 'c')},
                      {MessageKind::kEnd, "end"}};
  std::string bytes;
  for (const auto& [kind, body] : sent) bytes += BytesOf(kind, body);
  for (const size_t at_once :
       {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4096}, bytes.size()}) {
    MessageReader reader(100'000);
    const absl::StatusOr<Kinds> read = ReadAll(reader, bytes, at_once);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, sent) << at_once;
    EXPECT_FALSE(reader.has_bytes());
  }
}

TEST(MessageReaderTest, AMessageThatIsNotCompleteIsNotReturned) {
  const std::string bytes = BytesOf(MessageKind::kMessage, "body");
  for (size_t count = 0; count < bytes.size(); ++count) {
    MessageReader reader(100);
    EXPECT_EQ(*ReadAll(reader, absl::string_view(bytes).substr(0, count), 100), Kinds());
    EXPECT_EQ(reader.has_bytes(), count > 0);
  }
}

TEST(MessageReaderTest, ABodyThatIsTooLongIsRefusedBeforeItArrives) {
  MessageReader reader(100);
  const std::string bytes = BytesOf(MessageKind::kMessage, std::string(101, 'x'));
  ExpectError(ReadAll(reader, bytes.substr(0, 8), 8).status(), absl::StatusCode::kResourceExhausted,
              {"has 101 bytes", "at most 100"});
  MessageReader patient(100);
  patient.set_most_bytes(101);
  EXPECT_EQ(ReadAll(patient, bytes, 8)->size(), 1u);
}

TEST(MessageReaderTest, OtherKindsAreRefused) {
  for (const uint32_t kind : {0u, 6u, ~0u}) {
    MessageReader reader(100);
    ExpectError(ReadAll(reader, BytesOf(MessageKind{kind}, ""), 8).status(),
                absl::StatusCode::kInvalidArgument, {absl::StrCat("kind ", kind)});
  }
}

absl::Status Decoded(const std::string& body) {
  return DecodeEnd({reinterpret_cast<const std::byte*>(body.data()), body.size()});
}

TEST(EndTest, HasTheStatus) {
  for (const absl::Status& status : {absl::UnavailableError("gone"), absl::UnauthenticatedError(""),
                                     absl::CancelledError("x")}) {
    EXPECT_EQ(Decoded(EncodeEnd(status)), status);
  }
}

TEST(EndTest, IsNeverOk) {
  EXPECT_TRUE(absl::IsUnavailable(Decoded("")));
  EXPECT_TRUE(absl::IsUnavailable(Decoded("abc")));
  EXPECT_TRUE(absl::IsUnavailable(Decoded(EncodeEnd(absl::OkStatus()))));
  EXPECT_EQ(Decoded(std::string("\x11\0\0\0text", 8)), absl::UnknownError("text"));
}

}  // namespace
}  // namespace syncgrads
