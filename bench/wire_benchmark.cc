// Measures how long a frame's header takes to encode and to decode. Neither touches the payload, so
// the payload's size should have no effect. A decoder that copies would need additional time; this
// is shown by memcpy of the same payload.

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads {
namespace {

PushHeader SomePush() {
  PushHeader header;
  header.generation = Generation{3};
  header.group = GroupId{1};
  header.chunk = ChunkId{97};
  header.round = Round{123456};
  header.member = MemberId{7};
  header.incarnation = Incarnation{0x123456789abcdef};
  header.epoch = 2;
  return header;
}

UpdateHeader SomeUpdate(size_t spans) {
  UpdateHeader header;
  header.generation = Generation{3};
  header.group = GroupId{1};
  header.chunk = ChunkId{97};
  header.round = Round{123456};
  header.epoch = 2;
  header.counts.assign(spans, 4);
  return header;
}

// Returns a message in the form in which gRPC delivers it: in pieces of 16 KiB.
std::vector<absl::Span<const std::byte>> InPieces(const std::string& message) {
  constexpr size_t kPiece = 16384;
  std::vector<absl::Span<const std::byte>> pieces;
  for (size_t at = 0; at < message.size(); at += kPiece) {
    pieces.push_back({reinterpret_cast<const std::byte*>(message.data()) + at,
                      std::min(kPiece, message.size() - at)});
  }
  return pieces;
}

void EncodePush(benchmark::State& state) {
  const PushHeader header = SomePush();
  for (auto _ : state) benchmark::DoNotOptimize(EncodeHeader(header, state.range(0)));
}

void DecodePush(benchmark::State& state) {
  const size_t bytes = state.range(0);
  const std::string message = EncodeHeader(SomePush(), bytes) + std::string(bytes, 'x');
  const auto pieces = InPieces(message);
  for (auto _ : state) benchmark::DoNotOptimize(syncgrads::DecodePush(pieces));
}

void EncodeUpdate(benchmark::State& state) {
  const UpdateHeader header = SomeUpdate(state.range(1));
  for (auto _ : state) benchmark::DoNotOptimize(EncodeHeader(header, state.range(0)));
}

void DecodeUpdate(benchmark::State& state) {
  const size_t bytes = state.range(0);
  const std::string message =
      EncodeHeader(SomeUpdate(state.range(1)), bytes) + std::string(bytes, 'x');
  const auto pieces = InPieces(message);
  for (auto _ : state) benchmark::DoNotOptimize(syncgrads::DecodeUpdate(pieces));
}

void CopyPayload(benchmark::State& state) {
  const std::vector<char> from(state.range(0), 'x');
  std::vector<char> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
}

BENCHMARK(CopyPayload)->Arg(4 << 10)->Arg(1 << 20)->Arg(4 << 20);
BENCHMARK(EncodePush)->Arg(4 << 10)->Arg(1 << 20)->Arg(4 << 20);
BENCHMARK(DecodePush)->Arg(4 << 10)->Arg(1 << 20)->Arg(4 << 20);
BENCHMARK(EncodeUpdate)->Args({1 << 20, 1})->Args({1 << 20, 1000});
BENCHMARK(DecodeUpdate)->Args({1 << 20, 1})->Args({1 << 20, 1000})->Args({4 << 20, 1});

}  // namespace
}  // namespace syncgrads

BENCHMARK_MAIN();
