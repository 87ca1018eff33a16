// Decodes arbitrary bytes as a push and as an update. The first bytes of the input determine how
// the message is cut into pieces. The program must not crash. Every message that protobuf can parse
// must be decoded with the same meaning, wherever the cuts are.

#include <google/protobuf/stubs/logging.h>

#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "common/wire/frame.h"
#include "proto/data.pb.h"
#include "tests/common/wire/random_frame.h"
#include "tests/fuzz/cut_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

// Requires that the decoded message, when it is encoded again, is parsed by protobuf in the same
// way as the original.
template <typename Proto, typename Frame>
void RequireSameMeaning(const std::string& message, const absl::StatusOr<Frame>& frame) {
  Proto theirs;
  if (!theirs.ParseFromString(message)) return;  // our decoder may accept more
  // Protobuf ignores the bits of a field number beyond 29, and it skips groups, a deprecated wire
  // format. Our decoder refuses both.
  if (absl::StrContains(frame.status().message(), "a field with the invalid number") ||
      absl::StrContains(frame.status().message(), "a field of unknown wire type")) {
    return;
  }
  RequireExplained(frame.status());
  Require(frame.ok(), "a message that protobuf reads is read");
  theirs.DiscardUnknownFields();
  const std::string payload = TextOf(frame->payload);
  Proto ours;
  Require(ours.ParseFromString(EncodeHeader(frame->header, payload.size()) + payload),
          "protobuf reads a message that is encoded again");
  // Our decoder keeps a codec as 32 unsigned bits. No valid codec is negative.
  if (theirs.codec() < 0) return;
  if constexpr (std::is_same_v<Proto, v1::UpdateChunk>) {
    // Errors are not compared: our decoder maps an unknown code to kUnknown, and of several errors
    // it keeps the last one.
    theirs.clear_error();
    ours.clear_error();
  }
  Require(ours.SerializeAsString() == theirs.SerializeAsString(),
          "a message has the meaning that protobuf reads");
}

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  Choices choices(input);
  const size_t stride = 1 + choices.Byte();
  const size_t first_cut = choices.Byte();
  const std::string message(choices.Rest());
  const CutMessage cut(message, first_cut, stride);
  RequireSameMeaning<v1::PushChunk>(message, DecodePush(cut.pieces()));
  RequireSameMeaning<v1::UpdateChunk>(message, DecodeUpdate(cut.pieces()));
}

std::vector<std::string> Seeds() {
  constexpr int kMessages = 5000;
  std::vector<std::string> seeds;
  RandomFrames frames(20240715);
  for (int i = 0; i < kMessages; ++i) {
    const std::string cuts = {static_cast<char>(frames.Below(256)),
                              static_cast<char>(frames.Below(256))};
    const std::string payload = frames.Payload();
    seeds.push_back(cuts +
                    (frames.Below(2) == 0 ? EncodeHeader(frames.Push(), payload.size())
                                          : EncodeHeader(frames.Update(), payload.size())) +
                    payload);
  }
  return seeds;
}

}  // namespace syncgrads::fuzz
