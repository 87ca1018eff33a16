// The fuzz target over messages that are drawn at random, and then damaged.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "tests/common/wire/random_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace syncgrads {
namespace {

constexpr uint64_t kSeed = 20240715;
constexpr int kMessages = 20000;

void Feed(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// The bytes that say how the message is cut.
std::string Cuts(RandomFrames& frames) {
  return {static_cast<char>(frames.Below(256)), static_cast<char>(frames.Below(256))};
}

std::string Message(RandomFrames& frames) {
  const std::string payload = frames.Payload();
  return frames.Below(2) == 0 ? EncodeHeader(frames.Push(), payload.size()) + payload
                              : EncodeHeader(frames.Update(), payload.size()) + payload;
}

void Damage(std::string& message, RandomFrames& frames) {
  for (uint64_t times = 1 + frames.Below(4); times > 0 && !message.empty(); --times) {
    const size_t at = frames.Below(message.size());
    switch (frames.Below(4)) {
      case 0:
        message[at] = static_cast<char>(frames.Below(256));
        break;
      case 1:
        message.resize(at);
        break;
      case 2:
        message.insert(at, message.substr(frames.Below(message.size()), frames.Below(20)));
        break;
      case 3:
        message.erase(at, 1 + frames.Below(8));
        break;
    }
  }
}

TEST(WireFuzzTest, GoodMessagesMeanWhatProtobufReads) {
  RandomFrames frames(kSeed);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (int i = 0; i < kMessages; ++i) Feed(Cuts(frames) + Message(frames));
}

TEST(WireFuzzTest, DamagedMessagesCrashNothing) {
  RandomFrames frames(kSeed + 1);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed + 1));
  for (int i = 0; i < kMessages; ++i) {
    std::string message = Message(frames);
    Damage(message, frames);
    Feed(Cuts(frames) + message);
  }
}

TEST(WireFuzzTest, NoiseCrashesNothing) {
  RandomFrames frames(kSeed + 2);
  SCOPED_TRACE(absl::StrCat("seed ", kSeed + 2));
  for (int i = 0; i < kMessages; ++i) Feed(Cuts(frames) + frames.Payload().substr(0, 24));
}

}  // namespace
}  // namespace syncgrads
