// Random headers of all kinds.

#ifndef SYNCGRADS_TESTS_COMMON_WIRE_RANDOM_FRAME_H_
#define SYNCGRADS_TESTS_COMMON_WIRE_RANDOM_FRAME_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/wire/frame.h"

namespace syncgrads {

class RandomFrames {
 public:
  explicit RandomFrames(uint64_t seed) : random_(seed) {}

  PushHeader Push() {
    PushHeader header;
    if (Chance()) header.hello = Hello();
    header.generation = Generation{Number()};
    header.group = GroupId{Number32()};
    header.chunk = ChunkId{Number32()};
    header.round = Round{Number()};
    header.member = MemberId{Number32()};
    header.incarnation = Incarnation{Number()};
    header.epoch = Number();
    header.codec = Codec{Number32() & 0x7fffffff};  // an enum of protobuf is an int32
    header.weight = Weight();
    header.skip = Chance();
    if (Chance()) header.absent_spans = Numbers();
    header.without_result = Chance();
    for (uint64_t left = Below(4); Chance() && left > 0; --left) header.shared.push_back(Piece());
    return header;
  }

  UpdateHeader Update() {
    UpdateHeader header;
    header.generation = Generation{Number()};
    header.group = GroupId{Number32()};
    header.chunk = ChunkId{Number32()};
    header.round = Round{Number()};
    header.epoch = Number();
    header.codec = Codec{Number32() & 0x7fffffff};
    if (Chance()) header.counts = Numbers();
    if (Chance()) header.contributors = Numbers();
    if (Chance()) {
      header.error = absl::Status(static_cast<absl::StatusCode>(1 + Below(16)), Text());
    }
    if (Chance()) header.welcome = DataWelcome{Text(), Text(), Text()};
    if (Chance()) header.shared = Piece();
    if (Chance()) header.newest_round = Round{Number()};
    if (Chance()) header.left_out = Numbers();
    return header;
  }

  std::string Payload() {
    std::string payload(Below(300), '\0');
    for (char& byte : payload) byte = static_cast<char>(random_());
    return payload;
  }

  // Returns a number in [0, end).
  uint64_t Below(uint64_t end) { return random_() % end; }

 private:
  bool Chance() { return random_() % 2 == 0; }

  // Returns a number of any encoded length. 0 and the largest number are more frequent than by
  // chance.
  uint64_t Number() {
    switch (random_() % 8) {
      case 0:
        return 0;
      case 1:
        return ~uint64_t{0};
      default:
        return random_() >> (random_() % 64);
    }
  }
  uint32_t Number32() { return static_cast<uint32_t>(Number() >> (random_() % 33)); }

  double Weight() {
    const double weights[] = {0.0, -0.0, 1.0, 32.0, 0.1, -3.5, 1e300, 5e-324};
    return weights[random_() % 8];
  }

  std::vector<uint32_t> Numbers() {
    std::vector<uint32_t> numbers(random_() % 6);
    for (uint32_t& number : numbers) number = Number32();
    return numbers;
  }

  // Strings of protobuf must be UTF-8.
  std::string Text() {
    const std::string texts[] = {"", "iris", "gr\xc3\xa4te", std::string(200, 'x'),
                                 std::string("a\0b", 3)};
    return texts[random_() % 5];
  }

  DataHello Hello() {
    return {Number32(), Text(), Text(), MemberId{Number32()}, Incarnation{Number()}, Text()};
  }

  SharedPiece Piece() { return {Number32(), Number(), Number()}; }

  std::mt19937_64 random_;
};

inline absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string TextOf(const Pieces& pieces) {
  std::string text;
  for (absl::Span<const std::byte> piece : pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_WIRE_RANDOM_FRAME_H_
