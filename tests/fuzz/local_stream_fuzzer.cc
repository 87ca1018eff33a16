// Cuts arbitrary bytes into the messages of a local stream. What is read does not depend on how the
// bytes arrive, and is, written again, the bytes that were read.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/local/message_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

constexpr size_t kMostBytes = 40'000;  // more than a reader's buffer has
constexpr size_t kMostParts = 1024;    // in which an input arrives

using Messages = std::vector<std::pair<MessageKind, std::string>>;

std::string Written(MessageKind kind, absl::string_view body) {
  const MessageHeaderBytes header = EncodeMessageHeader(kind, static_cast<uint32_t>(body.size()));
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(header.data()), header.size()), body);
}

// Reads the bytes, at most `at_once` at a time, until there are no more or an error is found.
absl::Status Read(absl::string_view bytes, size_t at_once, Messages& messages) {
  MessageReader reader(kMostBytes);
  while (true) {
    absl::StatusOr<std::optional<MessageReader::Message>> next = reader.Next();
    if (!next.ok()) return next.status();
    if (next->has_value()) {
      const absl::Span<const std::byte> body = (*next)->body();
      Require(body.size() <= kMostBytes, "no message is longer than is allowed");
      if ((*next)->kind == MessageKind::kEnd) {
        Require(!DecodeEnd(body).ok(), "no stream ends without an error");
      }
      messages.emplace_back((*next)->kind,
                            std::string(reinterpret_cast<const char*>(body.data()), body.size()));
      continue;
    }
    if (bytes.empty()) return absl::OkStatus();
    const absl::Span<std::byte> space = reader.Space();
    Require(!space.empty(), "there is room for what follows");
    const size_t count = std::min({bytes.size(), at_once, space.size()});
    std::memcpy(space.data(), bytes.data(), count);
    reader.Filled(count);
    bytes.remove_prefix(count);
  }
}

}  // namespace

void Fuzz(absl::string_view input) {
  Choices choices(input);
  const size_t least = choices.Number(2) + 1;
  const absl::string_view bytes = choices.Rest();
  const size_t at_once = std::max(least, bytes.size() / kMostParts);
  Messages whole, parts;
  const absl::Status read = Read(bytes, bytes.size(), whole);
  RequireExplained(read);
  Require(Read(bytes, at_once, parts) == read, "an error does not depend on the parts");
  Require(parts == whole, "messages do not depend on the parts");
  std::string again;
  for (const auto& [kind, body] : whole) again += Written(kind, body);
  Require(bytes.substr(0, again.size()) == again, "a message is written as it was read");
}

std::vector<std::string> Seeds() {
  std::string all;
  for (const MessageKind kind : {MessageKind::kReady, MessageKind::kMessage, MessageKind::kPing,
                                 MessageKind::kPong, MessageKind::kMessage}) {
    all += Written(kind, kind == MessageKind::kMessage ? std::string(20'000, 'x') : "");
  }
  all += Written(MessageKind::kEnd, EncodeEnd(absl::AbortedError("the end")));
  return {
      Encoded(0, 2) + Written(MessageKind::kMessage, "a message"),
      Encoded(6, 2) + all,
      Encoded(1000, 2) + all,
  };
}

}  // namespace syncgrads::fuzz
