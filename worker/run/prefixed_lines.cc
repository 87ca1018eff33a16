#include "worker/run/prefixed_lines.h"

namespace syncgrads {

PrefixedLines::Buffer::~Buffer() {
  if (!line_.empty()) WriteLine();
}

PrefixedLines::Buffer::int_type PrefixedLines::Buffer::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof()))
    return traits_type::not_eof(character);
  if (character == '\n') {
    WriteLine();
  } else {
    line_.push_back(traits_type::to_char_type(character));
  }
  return character;
}

void PrefixedLines::Buffer::WriteLine() {
  MutexLock lock(mutex_);
  out_ << prefix_ << line_ << std::endl;
  line_.clear();
}

}  // namespace syncgrads
