// Parses messages of peers that are not trusted.
//
// A parsed message can take many times the memory of its bytes: an empty element of a repeated
// field, or an unknown field, has two bytes, and takes up to a hundred when it is parsed. gRPC's
// quota does not count them.

#ifndef SYNCGRADS_COMMON_RPC_PARSE_MESSAGE_H_
#define SYNCGRADS_COMMON_RPC_PARSE_MESSAGE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>

#include "absl/status/status.h"

namespace syncgrads {

// A shorter message is parsed, whatever it has.
inline constexpr size_t kParsedAnyway = size_t{64} << 10;

// Parses `bytes` into `message`, which must be empty. The *parts* of a longer message than
// kParsedAnyway are counted before it is parsed: messages within it, elements of repeated strings,
// and unknown fields.
//
// Errors (the message names the type):
//   InvalidArgument    it is malformed, or has a string that is not UTF-8
//   ResourceExhausted  it has more than `most_parts` parts
absl::Status ParseMessage(grpc::ByteBuffer& bytes, size_t most_parts,
                          google::protobuf::Message& message);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_PARSE_MESSAGE_H_
