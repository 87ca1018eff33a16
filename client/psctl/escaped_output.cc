#include "client/psctl/escaped_output.h"

#include "common/names.h"

namespace syncgrads::client {

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
