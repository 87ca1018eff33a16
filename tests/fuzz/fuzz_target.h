// A fuzz target: what tests/fuzz/NAME_fuzzer.cc defines, and what all targets use.
//
// Each target is linked into two programs. NAME_fuzz_test runs the seeds and damaged copies of
// them (fuzz_test.cc). NAME_fuzz runs the target under libFuzzer (libfuzzer.cc).

#ifndef SYNCGRADS_TESTS_FUZZ_FUZZ_TARGET_H_
#define SYNCGRADS_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncgrads::fuzz {

// Defined by each target: passes `input` to a parser and requires what must hold for every input.
// The result depends on nothing but `input`.
void Fuzz(absl::string_view input);
// Defined by each target: returns inputs that the parser accepts. They are the same in each call.
std::vector<std::string> Seeds();

// Ends the program with a message if `holds` is false.
void Require(bool holds, absl::string_view what);
// Requires that `status` is OK or has a message.
void RequireExplained(const absl::Status& status);

// Takes the choices of a target from the front of its input. An input that is too short is
// continued with zeros.
class Choices {
 public:
  explicit Choices(absl::string_view input) : input_(input) {}

  uint8_t Byte() { return static_cast<uint8_t>(Number(1)); }
  // Returns the next `bytes` (at most 8) as a little-endian number.
  uint64_t Number(size_t bytes);
  // Returns up to `bytes` bytes, fewer at the end of the input.
  absl::string_view Take(size_t bytes);
  absl::string_view Rest() { return Take(input_.size()); }
  bool empty() const { return input_.empty(); }

 private:
  absl::string_view input_;
};

// Returns `number` in `bytes` bytes, as Choices::Number reads it.
std::string Encoded(uint64_t number, size_t bytes);

}  // namespace syncgrads::fuzz

#endif  // SYNCGRADS_TESTS_FUZZ_FUZZ_TARGET_H_
