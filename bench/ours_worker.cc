// Workers of syncgrads, as one process of a benchmark. The process has one or several ranks. Each
// rank is a thread with its own client.

#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/conducted.h"
#include "client/client.h"
#include "common/codec/encoding.h"
#include "common/group/group.h"
#include "common/process_setup.h"
#include "common/tls/tls_flags.h"
#include "third_party/grpc/pollers.h"

ABSL_FLAG(std::string, conductor, "", "the conductor's socket");
ABSL_FLAG(std::string, coordinator, "", "host:port of server 0");
ABSL_FLAG(uint32_t, rank, 0, "rank of the first thread");
ABSL_FLAG(uint32_t, ranks, 1, "ranks, each a thread, in this process");
ABSL_FLAG(uint32_t, world_size, 1, "ranks in all");
ABSL_FLAG(uint64_t, bytes, 1 << 20, "S: bytes of float32 of one contribution");
ABSL_FLAG(uint32_t, tensors, 1, "the contribution is cut into so many tensors");
ABSL_FLAG(uint32_t, chunk_bytes, 0, "0: the default");
ABSL_FLAG(int, connections, 2, "connections to each server");
ABSL_FLAG(std::string, congestion_control, "", "of TCP; empty: the kernel's default");
ABSL_FLAG(uint32_t, pollers, 0, "as ps-worker's");
ABSL_FLAG(bool, shared_memory, true, "where worker and server share a host");
ABSL_FLAG(bool, allocate, false, "the contribution lies in memory that AllocateGradients gave");
ABSL_FLAG(bool, in_place, false, "the result is used where it arrives");
ABSL_FLAG(bool, separate, false, "the result goes to other memory than the contribution");
ABSL_FLAG(std::string, codec, "raw",
          "raw, f16, bf16, int8, top-k or one-bit: of contributions and results, which then go to "
          "other memory");

namespace syncgrads::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::_Exit(1);
}

// A codec, its name, and how far a result may differ from the mean of one step. (top-k sends one of
// a hundred elements.) The difference comes from rounding small integers in both directions, by
// half a step of int8 or the last bit of bf16, and from the compression error of earlier steps.
struct NamedCodec {
  const char* name;
  Encoding encoding;
  float tolerance;
};
constexpr NamedCodec kCodecs[] = {{"raw", {}, 1e-4f},
                                  {"f16", {Codec::kF16}, 0.2f},
                                  {"bf16", {Codec::kBF16}, 2},
                                  {"int8", {Codec::kInt8}, 2},
                                  {"top-k", {Codec::kTopK, 0.01}, INFINITY},
                                  {"one-bit", {Codec::kOneBit}, INFINITY}};

const NamedCodec& CodecOfFlag() {
  for (const NamedCodec& codec : kCodecs) {
    if (absl::GetFlag(FLAGS_codec) == codec.name) return codec;
  }
  std::cerr << "there is no codec " << absl::GetFlag(FLAGS_codec) << std::endl;
  std::_Exit(2);
}

// Returns the results of all tensors, in order.
std::vector<absl::Span<const float>> InPlaceResults(const Group& group) {
  std::vector<absl::Span<const float>> results;
  for (uint32_t t = 0; t < group.spec().tensors.size(); ++t) {
    const auto pieces = group.InPlaceResult(TensorId{t});
    Require(pieces.status());
    for (const absl::Span<const std::byte> piece : *pieces) {
      results.push_back(
          {reinterpret_cast<const float*>(piece.data()), piece.size() / sizeof(float)});
    }
  }
  return results;
}

int Work(uint32_t rank) {
  const uint32_t world_size = absl::GetFlag(FLAGS_world_size);
  const uint32_t tensors = absl::GetFlag(FLAGS_tensors);
  const size_t elements = absl::GetFlag(FLAGS_bytes) / sizeof(float);
  Client client({.coordinator = absl::GetFlag(FLAGS_coordinator),
                 .job = "bench",
                 .tls = TlsFromFlags(),
                 .rank = rank,
                 .world_size = world_size,
                 .connections_per_server = absl::GetFlag(FLAGS_connections),
                 .congestion_control = absl::GetFlag(FLAGS_congestion_control),
                 .shared_memory = absl::GetFlag(FLAGS_shared_memory)});
  Require(client.Join(kTimeout));

  std::vector<float> ordinary(absl::GetFlag(FLAGS_allocate) ? 0 : elements);
  const NamedCodec& codec = CodecOfFlag();
  std::vector<float> separate(absl::GetFlag(FLAGS_separate) || !codec.encoding.is_raw() ? elements
                                                                                        : 0);
  float* contribution = ordinary.data();
  if (ordinary.empty()) {
    absl::StatusOr<void*> allocated = client.AllocateGradients(elements * sizeof(float));
    Require(allocated.status());
    contribution = static_cast<float*>(*allocated);
  }
  const bool in_place = absl::GetFlag(FLAGS_in_place);
  float* const result = separate.empty() ? contribution : separate.data();

  GroupSpec spec{.name = "model", .chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes)};
  std::vector<size_t> first(tensors + 1);
  for (uint32_t t = 0; t < tensors; ++t) {
    first[t + 1] = elements * (t + 1) / tensors;
    spec.tensors.push_back(
        {absl::StrCat("t", t), DType::kF32, {static_cast<int64_t>(first[t + 1] - first[t])}});
  }
  if (!codec.encoding.is_raw()) spec.compression.resize(tensors, {codec.encoding, codec.encoding});
  auto group = client.Register(spec, kTimeout);
  Require(group.status());

  Values values(contribution, result, elements, rank, world_size);
  values.SetTolerance(codec.tolerance);
  const int code = FollowConductor(absl::GetFlag(FLAGS_conductor), rank, values, [&] {
    // The last tensor is pushed first, as in a backward pass.
    for (uint32_t t = tensors; t-- > 0;) {
      const float* const tensor = contribution + first[t];
      const size_t bytes = (first[t + 1] - first[t]) * sizeof(float);
      Require(in_place ? (*group)->Push(TensorId{t}, tensor, bytes, Group::InPlace())
                       : (*group)->Push(TensorId{t}, tensor, bytes, result + first[t]));
    }
    Require((*group)->WaitStep(kTimeout).status());
    if (in_place) values.SetResult(InPlaceResults(**group));
  });
  Require(client.Leave(kTimeout));
  return code;
}

int Main() {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_ranks); ++i) {
    threads.emplace_back([i] {
      if (const int code = Work(absl::GetFlag(FLAGS_rank) + i); code != 0) std::_Exit(code);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace syncgrads::bench

int main(int argc, char** argv) {
  // The same setup as in ps-worker.
  syncgrads::SetUpProcess();
  absl::ParseCommandLine(argc, argv);
  syncgrads::SetPollers(absl::GetFlag(FLAGS_pollers));
  return syncgrads::bench::Main();
}
