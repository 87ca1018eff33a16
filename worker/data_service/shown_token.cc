#include "worker/data_service/shown_token.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>

#include "proto/served_data.pb.h"

namespace syncgrads {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr uint32_t kOpenTag = WireFormatLite::MakeTag(v1::ServedDataRequest::kOpenFieldNumber,
                                                      WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kTokenTag = WireFormatLite::MakeTag(v1::OpenServedData::kTokenFieldNumber,
                                                       WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// Calls `read(length)` for each field with this tag, and skips all others, up to the end or to the
// limit of `in`. Returns false if the fields are malformed or `read` returns false.
template <typename Read>
bool ForEachField(CodedInputStream& in, uint32_t tag, Read read) {
  while (const uint32_t found = in.ReadTag()) {
    if (found != tag) {
      if (!WireFormatLite::SkipField(&in, found)) return false;
      continue;
    }
    int length;
    if (!in.ReadVarintSizeAsInt(&length) || !read(length)) return false;
  }
  return in.ConsumedEntireMessage();
}

}  // namespace

absl::StatusOr<std::string> FindShownToken(grpc::ByteBuffer& message) {
  grpc::ProtoBufferReader bytes(&message);
  CodedInputStream in(&bytes);
  bool opens = false;
  std::string token;
  const bool is_well_formed = ForEachField(in, kOpenTag, [&](int length) {
    opens = true;
    const CodedInputStream::Limit end = in.PushLimit(length);
    const bool has_fields = ForEachField(
        in, kTokenTag, [&](int token_length) { return in.ReadString(&token, token_length); });
    in.PopLimit(end);
    return has_fields;
  });
  if (!is_well_formed) return absl::InvalidArgumentError("the first request is malformed");
  if (!opens) return absl::InvalidArgumentError("the first request must be open");
  return token;
}

}  // namespace syncgrads
