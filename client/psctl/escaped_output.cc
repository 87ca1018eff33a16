#include "client/psctl/escaped_output.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "common/names.h"

namespace syncgrads::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void EscapeText(const Reflection& reflection, const FieldDescriptor* field, Message& message) {
  std::string scratch;
  if (!field->is_repeated()) {
    const std::string& text = reflection.GetStringReference(message, field, &scratch);
    if (!IsPrintable(text)) reflection.SetString(&message, field, Printable(text, text.size()));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    const std::string& text = reflection.GetRepeatedStringReference(message, field, i, &scratch);
    if (IsPrintable(text)) continue;
    reflection.SetRepeatedString(&message, field, i, Printable(text, text.size()));
  }
}

}  // namespace

void EscapeTexts(Message& message) {
  std::vector<Message*> pending = {&message};
  while (!pending.empty()) {
    Message& one = *pending.back();
    pending.pop_back();
    const Reflection& reflection = *one.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(one, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        EscapeText(reflection, field, one);
      } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        continue;
      } else if (field->is_repeated()) {
        for (int i = 0; i < reflection.FieldSize(one, field); ++i) {
          pending.push_back(reflection.MutableRepeatedMessage(&one, field, i));
        }
      } else {
        pending.push_back(reflection.MutableMessage(&one, field));
      }
    }
  }
}

void EscapedOutput::WriteUnescaped(absl::string_view text) {
  flush();
  buffer_.out() << text;
}

EscapedOutput::Buffer::int_type EscapedOutput::Buffer::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof()))
    return traits_type::not_eof(character);
  const char one = traits_type::to_char_type(character);
  if (one != '\n') {
    line_.push_back(one);
    return character;
  }
  if (!PassOn() || !out_.put('\n')) return traits_type::eof();
  return character;
}

int EscapedOutput::Buffer::sync() { return PassOn() && out_.flush() ? 0 : -1; }

bool EscapedOutput::Buffer::PassOn() {
  out_ << Printable(line_, line_.size());
  line_.clear();
  return static_cast<bool>(out_);
}

}  // namespace syncgrads::client
