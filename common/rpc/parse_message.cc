#include "common/rpc/parse_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// As deep as messages within messages may be that protobuf parses.
constexpr int kMostDepth = 100;

// Counts the parts of a message, up to a maximum.
class PartCount {
 public:
  explicit PartCount(size_t most) : left_(most) {}

  // Returns false if the message is malformed or has too many parts.
  bool Add(CodedInputStream& in, const Descriptor& type, int depth = 0) {
    if (depth > kMostDepth) return false;
    while (const uint32_t tag = in.ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
      if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!AddDelimited(in, field, depth)) return false;
        continue;
      }
      // It may have any number of parts. proto3 has no groups.
      if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) {
        has_group_ = true;
        return false;
      }
      const bool is_small = IsNumber(field) && wire_type == WireTypeOf(*field);
      if (!WireFormatLite::SkipField(&in, tag) || (!is_small && !Take())) return false;
    }
    return in.ConsumedEntireMessage();
  }

  bool is_exhausted() const { return is_exhausted_; }
  bool has_group() const { return has_group_; }

 private:
  static bool IsNumber(const FieldDescriptor* field) {
    return field != nullptr && field->type() != FieldDescriptor::TYPE_MESSAGE &&
           field->type() != FieldDescriptor::TYPE_STRING &&
           field->type() != FieldDescriptor::TYPE_BYTES;
  }

  // The wire type of a number that is not packed. A field with another one is an unknown field.
  static WireFormatLite::WireType WireTypeOf(const FieldDescriptor& number) {
    return WireFormatLite::WireTypeForFieldType(
        static_cast<WireFormatLite::FieldType>(number.type()));
  }

  bool AddDelimited(CodedInputStream& in, const FieldDescriptor* field, int depth) {
    uint32_t size = 0;
    if (!in.ReadVarint32(&size) || size > std::numeric_limits<int>::max()) return false;
    const auto bytes = static_cast<int>(size);
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      if (!Take()) return false;
      const CodedInputStream::Limit limit = in.PushLimit(bytes);
      if (!Add(in, *field->message_type(), depth + 1)) return false;
      in.PopLimit(limit);
      return true;
    }
    // A repeated number is packed; a single one with a length is an unknown field.
    const bool is_small =
        field != nullptr && (IsNumber(field) ? field->is_repeated() : !field->is_repeated());
    return (is_small || Take()) && in.Skip(bytes);
  }

  bool Take() {
    if (left_ > 0) {
      --left_;
      return true;
    }
    is_exhausted_ = true;
    return false;
  }

  size_t left_;
  bool is_exhausted_ = false;
  bool has_group_ = false;
};

}  // namespace

absl::Status ParseMessage(grpc::ByteBuffer& bytes, size_t most_parts,
                          google::protobuf::Message& message) {
  const std::string& name = message.GetDescriptor()->name();
  if (bytes.Length() > kParsedAnyway) {
    PartCount parts(most_parts);
    grpc::ProtoBufferReader reader(&bytes);
    CodedInputStream in(&reader);
    parts.Add(in, *message.GetDescriptor());
    if (parts.is_exhausted()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a ", name, " of ", bytes.Length(), " bytes has more than ", most_parts, " parts"));
    }
    if (parts.has_group()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a message of ", bytes.Length(), " bytes is not a valid ", name, ": it has a group"));
    }
  }
  const size_t length = bytes.Length();
  if (grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&bytes, &message)
          .ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", length, " bytes is not a valid ", name,
                   ": it is malformed, or has a string that is not UTF-8"));
}

}  // namespace syncgrads
