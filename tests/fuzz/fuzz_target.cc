#include "tests/fuzz/fuzz_target.h"

#include <cstdio>
#include <cstdlib>

namespace syncgrads::fuzz {

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "this does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void RequireExplained(const absl::Status& status) {
  Require(status.ok() || !status.message().empty(), "an error has a message");
}

uint64_t Choices::Number(size_t bytes) {
  uint64_t number = 0;
  const absl::string_view taken = Take(bytes);
  for (size_t i = 0; i < taken.size(); ++i) {
    number |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
  }
  return number;
}

absl::string_view Choices::Take(size_t bytes) {
  const absl::string_view taken = input_.substr(0, bytes);
  input_.remove_prefix(taken.size());
  return taken;
}

std::string Encoded(uint64_t number, size_t bytes) {
  std::string encoded;
  for (size_t i = 0; i < bytes; ++i) encoded.push_back(static_cast<char>(number >> (8 * i)));
  return encoded;
}

}  // namespace syncgrads::fuzz
