// Looks for the token in arbitrary bytes, as a data server does in the first message of a call. The
// first bytes of the input determine how the message is cut into pieces. Every message that
// protobuf parses as a request to open must be accepted; once it is written again, its token must
// be found.

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/served_data.pb.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/data_service/shown_token.h"

namespace syncgrads::fuzz {
namespace {

// Looks in a copy of `message` in pieces of `stride` bytes; the first has `first` bytes.
absl::StatusOr<std::string> FindIn(absl::string_view message, size_t first, size_t stride) {
  std::vector<grpc::Slice> slices;
  for (size_t bytes = first; !message.empty(); bytes = stride) {
    bytes = std::min(bytes, message.size());
    slices.emplace_back(message.data(), bytes);
    message.remove_prefix(bytes);
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  return FindShownToken(buffer);
}

std::string RequestWith(const std::string& token, int tables) {
  v1::ServedDataRequest request;
  v1::OpenServedData& open = *request.mutable_open();
  open.set_token(token);
  open.set_job("iris");
  for (int i = 0; i < tables; ++i) open.mutable_data()->mutable_table()->add_tables();
  open.set_world_size(3);
  return request.SerializeAsString();
}

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  Choices choices(input);
  const size_t stride = 1 + choices.Byte();
  const size_t first = choices.Byte();
  const std::string message(choices.Rest());
  const absl::StatusOr<std::string> token = FindIn(message, first, stride);
  RequireExplained(token.status());
  Require(!token.ok() || token->size() <= message.size(), "a token is a part of its message");
  v1::ServedDataRequest request;
  if (!request.ParseFromString(message) || !request.has_open()) return;
  Require(token.ok(), "a request to open that protobuf reads is accepted");
  const absl::StatusOr<std::string> again = FindIn(request.SerializeAsString(), first, stride);
  Require(again.ok() && *again == request.open().token(), "the token is that of the request");
}

std::vector<std::string> Seeds() {
  const std::string cuts = "\x03\x01";
  v1::ServedDataRequest ask;
  ask.mutable_ask()->add_rows(1);
  return {cuts,
          cuts + RequestWith("", 0),
          cuts + RequestWith("secret", 3),
          cuts + RequestWith(std::string(300, 't'), 300),
          cuts + RequestWith("secret", 1) + RequestWith("guess", 0),
          cuts + ask.SerializeAsString()};
}

}  // namespace syncgrads::fuzz
