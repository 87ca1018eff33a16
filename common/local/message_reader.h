// The messages of a local stream: a stream between two processes of one host, over a unix socket,
// in place of a call of gRPC.
//
// In each direction, messages follow each other. A message is its kind and the length of its body
// (two little-endian numbers of 32 bits), and its body. The kinds:
//
//   ready    the first message of the server. Its body is empty. A client sends nothing before it
//   message  what a message of the call would be, for example a PushChunk
//   end      the server ends the stream. The body is the number of a status code (32 bits,
//            little-endian) and the text of the status. It is the last message
//   ping     the body is empty. It is answered with a pong
//   pong     the body is empty

#ifndef SYNCGRADS_COMMON_LOCAL_MESSAGE_READER_H_
#define SYNCGRADS_COMMON_LOCAL_MESSAGE_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace syncgrads {

enum class MessageKind : uint32_t { kReady = 1, kMessage = 2, kEnd = 3, kPing = 4, kPong = 5 };

inline constexpr size_t kMessageHeaderBytes = 8;
using MessageHeaderBytes = std::array<std::byte, kMessageHeaderBytes>;

// Returns the bytes that precede a body.
MessageHeaderBytes EncodeMessageHeader(MessageKind kind, uint32_t length);

// The body of the message with which a stream ends. Decoding gives Unavailable for a body that has
// no status, or OK: a server never ends a stream that way.
std::string EncodeEnd(const absl::Status& status);
absl::Status DecodeEnd(absl::Span<const std::byte> body);

// Cuts the bytes that are received from a stream into messages. Thread-compatible.
class MessageReader {
 public:
  struct Message {
    MessageKind kind{};
    std::shared_ptr<const std::byte[]> memory;
    size_t size = 0;

    absl::Span<const std::byte> body() const { return {memory.get(), size}; }
  };

  // `most_bytes` is the maximum length of a body.
  explicit MessageReader(size_t most_bytes) : most_bytes_(most_bytes) {}

  void set_most_bytes(size_t most_bytes) { most_bytes_ = most_bytes; }

  // Returns memory for the bytes that are received next; it is not empty. Call Next before, until
  // it returns nothing.
  absl::Span<std::byte> Space();
  // The first `bytes` of Space have been filled.
  void Filled(size_t bytes);
  // Whether bytes have been filled in that Next has not returned.
  bool has_bytes() const { return begin_ < end_ || body_ != nullptr; }

  // Returns the next message; nullopt if it is not complete.
  //
  // Errors, after which nothing more can be read:
  //   ResourceExhausted  a body is longer than `most_bytes`
  //   InvalidArgument    there is no such kind
  absl::StatusOr<std::optional<Message>> Next();

 private:
  // Several messages without payloads fit. The begin of a long body is copied from here, the rest
  // is received where it stays.
  static constexpr size_t kBufferBytes = 512;

  // Received bytes from `begin_` to `end_`. Allocated by the first call of Space.
  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  // The body that is being received, if its header has been read; `filled_` of its bytes are here.
  std::shared_ptr<std::byte[]> body_;
  MessageKind kind_{};
  size_t length_ = 0;
  size_t filled_ = 0;
  size_t most_bytes_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LOCAL_MESSAGE_READER_H_
