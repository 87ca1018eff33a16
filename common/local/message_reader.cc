#include "common/local/message_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

void Store(uint32_t value, std::byte* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

uint32_t Load(const std::byte* from) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<uint32_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace

MessageHeaderBytes EncodeMessageHeader(MessageKind kind, uint32_t length) {
  MessageHeaderBytes bytes;
  Store(static_cast<uint32_t>(kind), bytes.data());
  Store(length, bytes.data() + 4);
  return bytes;
}

std::string EncodeEnd(const absl::Status& status) {
  std::byte code[4];
  Store(static_cast<uint32_t>(status.code()), code);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(code), sizeof code),
                      status.message());
}

absl::Status DecodeEnd(absl::Span<const std::byte> body) {
  if (body.size() < 4) return absl::UnavailableError("the stream ends without a status");
  const uint32_t code = Load(body.data());
  if (code == 0) return absl::UnavailableError("the server has closed the stream");
  body.remove_prefix(4);
  const absl::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  if (code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(text);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

absl::Span<std::byte> MessageReader::Space() {
  if (body_ != nullptr) return {body_.get() + filled_, length_ - filled_};
  if (buffer_ == nullptr) buffer_.reset(new std::byte[kBufferBytes]);
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return {buffer_.get() + end_, kBufferBytes - end_};
}

void MessageReader::Filled(size_t bytes) { (body_ != nullptr ? filled_ : end_) += bytes; }

absl::StatusOr<std::optional<MessageReader::Message>> MessageReader::Next() {
  if (body_ == nullptr) {
    if (end_ - begin_ < kMessageHeaderBytes) return std::nullopt;
    const std::byte* const header = buffer_.get() + begin_;
    const uint32_t kind = Load(header);
    if (kind < static_cast<uint32_t>(MessageKind::kReady) ||
        kind > static_cast<uint32_t>(MessageKind::kPong)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of a local stream has kind ", kind, ", there is none such"));
    }
    length_ = Load(header + 4);
    if (length_ > most_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("a message of a local stream has ", length_,
                                                       " bytes, at most ", most_bytes_,
                                                       " are allowed"));
    }
    kind_ = static_cast<MessageKind>(kind);
    begin_ += kMessageHeaderBytes;
    body_.reset(new std::byte[length_]);
    filled_ = std::min(length_, end_ - begin_);
    std::memcpy(body_.get(), buffer_.get() + begin_, filled_);
    begin_ += filled_;
  }
  if (filled_ < length_) return std::nullopt;
  return Message{kind_, std::exchange(body_, nullptr), length_};
}

}  // namespace syncgrads
