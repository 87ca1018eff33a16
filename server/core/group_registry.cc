#include "server/core/group_registry.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "server/state/arena.h"

namespace syncgrads::server {
namespace {

uint64_t EncodedBytes(const Encoding& encoding, const TensorSpec& tensor) {
  const auto codec = MakeCodec(encoding);
  return codec == nullptr ? tensor.bytes() : EncodedSpanBytes(*codec, tensor.elements());
}

constexpr uint64_t kMostInMessage = 512 << 10;

// On links that are slow beside a message's cost, what a step takes longer than its bytes
// is some messages of each worker, which wait for each other: they are no longer than a
// link takes in less than a millisecond, but not so short that headers count. A link that
// is fast enough for others has not been measured well, and need not be.
uint64_t MostInMessage(double link_rate) {
  constexpr uint64_t kLeast = 28 << 10;
  constexpr double kSlow = 100e6, kSeconds = 0.8e-3;
  if (link_rate <= 0 || link_rate >= kSlow) return kMostInMessage;
  return std::max(kLeast, static_cast<uint64_t>(link_rate * kSeconds));
}

// A message costs the same whatever it carries, and a step is over when the last
// chunk has gone through all stages: chunks are as large as leaves a server enough
// of them to overlap those. In shared memory messages carry no payload, so that few large
// chunks are best.
uint32_t ChunkBytesFor(const GroupSpec& spec, size_t servers, const GroupRegistry::Path& path) {
  uint64_t total = 0;
  uint64_t encoded = 0;  // one way, the longer one
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSpec& tensor = spec.tensors[t];
    const Compression compression = spec.compression.empty() ? Compression() : spec.compression[t];
    total += tensor.bytes();
    encoded +=
        std::max(EncodedBytes(compression.push, tensor), EncodedBytes(compression.result, tensor));
  }
  const uint64_t few = std::clamp<uint64_t>(total / servers / 4, 1 << 20, kMaxChunkBytes);
  uint64_t bytes = few;
  const uint64_t most = MostInMessage(path.link_rate);
  const uint64_t unit = most < kMostInMessage ? 4 << 10 : 64 << 10;
  if (!path.shares_memory && encoded >= total) {
    // One server is near, more often than not.
    const uint64_t least = servers == 1 ? 128 << 10 : 64 << 10;
    bytes = std::clamp<uint64_t>(total / servers / 32, std::min(least, most), most);
  } else if (!path.shares_memory) {
    // What counts are the bytes of a message, fewer where links are so slow that it is
    // worth the while; but encoding and decoding are to overlap, too.
    const uint64_t message =
        std::clamp<uint64_t>(encoded / servers / 32, std::min<uint64_t>(32 << 10, most), most);
    const double smaller = static_cast<double>(total) / static_cast<double>(encoded);
    bytes = std::min(few, static_cast<uint64_t>(static_cast<double>(message) * smaller) + unit / 2);
  }
  return static_cast<uint32_t>(bytes / unit * unit);
}

}  // namespace

absl::StatusOr<const GroupRegistry::Registration*> GroupRegistry::Find(
    const GroupSpec& spec) const {
  const auto known = by_name_.find(spec.name);
  if (known == by_name_.end()) return nullptr;
  const Registration& registration = known->second;
  SYNCGRADS_RETURN_IF_ERROR(CheckAgreement(spec, registration.plan->spec, registration.by));
  return &registration;
}

absl::StatusOr<std::shared_ptr<const GroupPlan>> GroupRegistry::Plan(const GroupSpec& asked,
                                                                     uint32_t members,
                                                                     const Path& path) const {
  SYNCGRADS_RETURN_IF_ERROR(Validate(asked));
  GroupSpec spec = asked;
  if (spec.chunk_bytes == 0) {
    spec.chunk_bytes = ChunkBytesFor(spec, bytes_per_server_.size(), path);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(Layout layout, LayoutOf(spec));
  std::vector<uint64_t> bytes_per_server = bytes_per_server_;
  std::vector<ServerIndex> servers = PlaceChunks(layout, bytes_per_server);
  auto plan = std::make_shared<const GroupPlan>(
      GroupPlan{GroupId{static_cast<uint32_t>(by_name_.size())}, std::move(spec), std::move(layout),
                std::move(servers)});
  SYNCGRADS_RETURN_IF_ERROR(CheckMemory(*plan, members));
  return plan;
}

void GroupRegistry::Add(Registration registration) {
  const GroupPlan& plan = *registration.plan;
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes_per_server_[ToNumber(plan.servers[c])] += plan.layout.chunks()[c].bytes();
  }
  by_name_[plan.spec.name] = std::move(registration);
}

absl::Status GroupRegistry::CheckMemory(const GroupPlan& plan, uint64_t members) const {
  std::vector<uint64_t> bytes(bytes_per_server_.size());
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes[ToNumber(plan.servers[c])] += plan.layout.chunks()[c].bytes();
  }
  uint64_t arrays_of_results = 1;
  if (std::holds_alternative<Gather>(plan.spec.rule)) arrays_of_results = members;
  if (const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule)) {
    arrays_of_results += static_cast<uint64_t>(SlotCount(*optimizer));
  }
  // What results in codecs have lost.
  if (std::any_of(plan.spec.compression.begin(), plan.spec.compression.end(),
                  [](const Compression& one) { return !one.result.is_raw(); })) {
    ++arrays_of_results;
  }
  // Of a group that closes with the first, that is the only one.
  const uint64_t contributors = std::holds_alternative<First>(plan.spec.policy) ? 1 : members;
  uint64_t sets = Arena::kSets;
  const auto* quorum = std::get_if<Quorum>(&plan.spec.policy);
  if (quorum != nullptr && std::holds_alternative<Reduction>(plan.spec.rule)) {
    sets = std::max<uint64_t>(sets, quorum->kept + 1);
  }
  // Each member may be reading another version.
  if (std::holds_alternative<Staleness>(plan.spec.policy)) sets = members + 1;
  const uint64_t arrays = contributors + sets * arrays_of_results;
  for (uint32_t server = 0; server < bytes.size(); ++server) {
    const std::optional<uint64_t> available = available_(ServerIndex{server});
    // Divided, since the product may not fit a number.
    if (!available.has_value() || bytes[server] <= *available / arrays) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "group \"", plan.spec.name, "\" needs ", arrays, " times its ", bytes[server],
        " bytes on server ", server, ", for ", contributors,
        " members' contributions and the results; ", *available, " bytes are available there"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
