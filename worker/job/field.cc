#include "worker/job/field.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace syncgrads {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

Field::Field(const std::string& path, const Message& message, TextFormat::ParseInfoTree& locations)
    : path_(&path), descriptor_(message.GetDescriptor()), tree_(&locations) {}

Field Field::Member(absl::string_view name, int index) const {
  const FieldDescriptor* field = descriptor_->FindFieldByName(std::string(name));
  if (field == nullptr) std::abort();  // a bug in the caller
  Field member;
  member.path_ = path_;
  member.line_ = line_;
  member.column_ = column_;
  member.name_ = name_.empty() ? std::string(name) : absl::StrCat(name_, ".", name);
  if (index >= 0) absl::StrAppend(&member.name_, "[", index, "]");
  member.descriptor_ = field->message_type();
  if (tree_ == nullptr) return member;
  if (field->is_repeated() && index < 0) index = 0;
  const TextFormat::ParseLocation location = tree_->GetLocation(field, index);
  if (location.line < 0) return member;
  member.line_ = location.line;
  member.column_ = location.column;
  if (field->message_type() != nullptr) member.tree_ = tree_->GetTreeForNested(field, index);
  return member;
}

absl::Status Field::Error(absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(*path_, ":", line_ + 1, ":", column_ + 1, ": ",
                                                 name_, name_.empty() ? "" : ": ", problem));
}

}  // namespace syncgrads
