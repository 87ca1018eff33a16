#include "server/core/coordinator/group_registry.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"
#include "common/names.h"
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

// The largest payload of a message. On a slow link, the tail of a step is the time of the last
// few messages of each worker, which wait for each other. So a message takes the link less
// than a millisecond, but is not so short that its header matters. On a fast link the rate is
// not measured precisely and does not matter.
uint64_t MostInMessage(double link_rate) {
  constexpr uint64_t kLeast = 28 << 10;
  constexpr double kSlow = 100e6, kSeconds = 0.8e-3;
  // NaN compares false, so it counts as unknown.
  if (!(link_rate > 0 && link_rate < kSlow)) return kMostInMessage;
  return std::max(kLeast, static_cast<uint64_t>(link_rate * kSeconds));
}

// Chooses the chunk size. Large chunks are cheaper, because a message has a fixed cost. Small
// chunks overlap better: push, reduction and update of different chunks run at once, and a
// step ends when its last chunk is through all of them. So chunks are as large as possible
// while each server still has enough of them. In shared memory, messages carry no payload, so
// few large chunks are best.
uint32_t ChunkBytesFor(const GroupSpec& spec, size_t servers, const GroupRegistry::Path& path) {
  uint64_t total = 0;
  uint64_t encoded = 0;  // on the wire, in the direction that has more bytes
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
    // A single server is usually on the same host or close to it.
    const uint64_t least = servers == 1 ? 128 << 10 : 64 << 10;
    bytes = std::clamp<uint64_t>(total / servers / 32, std::min(least, most), most);
  } else if (!path.shares_memory) {
    // The size of the encoded message matters, and is smaller on slow links. The chunk is still
    // no larger than `few`, so that encoding and decoding overlap too.
    const uint64_t message =
        std::clamp<uint64_t>(encoded / servers / 32, std::min<uint64_t>(32 << 10, most), most);
    const double smaller = static_cast<double>(total) / static_cast<double>(encoded);
    bytes = std::min(few, static_cast<uint64_t>(static_cast<double>(message) * smaller) + unit / 2);
  }
  // A group may not have more than kMaxChunks, so a large group gets larger chunks even on a
  // slow link.
  const uint64_t least = total / (kMaxChunks / 2);
  if (bytes < least) bytes = std::min<uint64_t>(least + unit - 1, kMaxChunkBytes);
  return static_cast<uint32_t>(bytes / unit * unit);
}

// Bookkeeping on a server in bytes, measured and rounded up. A chunk has its rounds and the
// records of its results. A tensor and a span have entries in the plan, which every server
// has a copy of.
constexpr uint64_t kBytesOfChunk = 4096;
constexpr uint64_t kBytesOfTensor = 256;
constexpr uint64_t kBytesOfSpan = 128;

// A group of fewer chunks is planned in less than a millisecond.
constexpr uint64_t kFewChunks = 1024;

uint64_t Product(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

void AddSaturated(uint64_t& sum, uint64_t more) {
  if (__builtin_add_overflow(sum, more, &sum)) sum = std::numeric_limits<uint64_t>::max();
}

// The size in bytes of a group's plan, all names included.
uint64_t PlanBytes(const GroupPlan& plan) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : plan.spec.tensors) {
    bytes += kBytesOfTensor + tensor.name.size() + tensor.shape.size() * sizeof(int64_t);
  }
  for (const Chunk& chunk : plan.layout.chunks()) {
    bytes += sizeof(Chunk) + chunk.spans.size() * kBytesOfSpan;
  }
  return bytes;
}

}  // namespace

std::vector<std::shared_ptr<const GroupPlan>> GroupRegistry::WithLearningRate() const {
  std::vector<std::shared_ptr<const GroupPlan>> groups;
  for (const auto& [name, registration] : by_name_) {
    if (HasLearningRate(registration.plan->spec)) groups.push_back(registration.plan);
  }
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a->id < b->id; });
  return groups;
}

absl::StatusOr<GroupRegistry::Draft> GroupRegistry::MakeDraft(const GroupSpec& asked,
                                                              size_t servers, const Path& path) {
  GroupSpec spec = asked;
  if (spec.chunk_bytes == 0) spec.chunk_bytes = ChunkBytesFor(spec, servers, path);
  SYNCGRADS_ASSIGN_OR_RETURN(
      Layout layout, Layout::CreateChecked(spec.tensors, ChunkSizesOf(spec), spec.compression));
  return Draft{
      path, servers,
      std::make_shared<GroupPlan>(GroupPlan{GroupId{}, std::move(spec), std::move(layout), {}})};
}

absl::StatusOr<std::shared_ptr<const GroupPlan>> GroupRegistry::Plan(const GroupSpec& spec,
                                                                     const Path& path) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const Draft draft, MakeDraft(spec, servers(), path));
  return Plan(draft);
}

absl::StatusOr<std::shared_ptr<const GroupPlan>> GroupRegistry::Plan(const Draft& draft) const {
  GroupPlan& plan = *draft.plan;
  if (by_name_.size() >= limits_.max_groups) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "group \"", Printable(plan.spec.name, kMaxNameBytes), "\" cannot be added to the job's ",
        by_name_.size(), " groups; at most ", limits_.max_groups,
        " (max_groups): each name of a group or a collective is a group; names can be used again"));
  }
  std::vector<uint64_t> bytes_per_server = bytes_per_server_;
  plan.servers = PlaceChunks(plan.layout, bytes_per_server);
  plan.id = GroupId{static_cast<uint32_t>(by_name_.size())};
  SYNCGRADS_RETURN_IF_ERROR(CheckLimits(plan));
  return draft.plan;
}

absl::Status GroupRegistry::CheckSize(const std::string& name, uint64_t bytes,
                                      uint32_t chunk_bytes) const {
  const uint64_t least_chunks = bytes / (chunk_bytes != 0 ? chunk_bytes : kMaxChunkBytes);
  // More than kMaxChunks are refused at once when they are planned.
  if (least_chunks < kFewChunks || least_chunks > kMaxChunks) return absl::OkStatus();
  if (chunks_ + least_chunks > limits_.max_chunks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "group \"", name, "\" has at least ", least_chunks, " chunks, and the job's other groups ",
        chunks_, "; at most ", limits_.max_chunks, " (max_chunks): use larger chunks"));
  }
  // All sets of results, and one contribution.
  const uint64_t least_bytes = Product(Arena::kSets + 1, bytes);
  const std::optional<uint64_t> left = budget_.Left();
  if (!left.has_value() || least_bytes <= *left) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("group \"", name, "\" of ", bytes, " bytes needs at least ", least_bytes,
                   " bytes of memory on all servers together; ", *left,
                   " bytes are available there and not reserved for other groups"));
}

void GroupRegistry::Reserve(const GroupPlan& plan) {
  waiting_ = NeedsOf(plan);
  // Nothing is allocated yet.
  for (MemoryNeed& need : waiting_) need.at_once = 0;
  budget_.Reserve(waiting_);
}

void GroupRegistry::GiveUp() { budget_.Release(std::exchange(waiting_, {})); }

void GroupRegistry::Add(Registration registration) {
  GiveUp();
  const GroupPlan& plan = *registration.plan;
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes_per_server_[ToNumber(plan.servers[c])] += plan.layout.chunks()[c].bytes();
  }
  chunks_ += plan.layout.chunks().size();
  const std::vector<MemoryNeed> needs = NeedsOf(plan);
  budget_.Reserve(needs);
  AddTo(reserved_, needs);
  by_name_[plan.spec.name] = std::move(registration);
}

void GroupRegistry::Release() {
  GiveUp();
  budget_.Release(reserved_);
  reserved_.clear();
}

absl::Status GroupRegistry::CheckLimits(const GroupPlan& plan) const {
  const uint64_t chunks = plan.layout.chunks().size();
  if (chunks + chunks_ > limits_.max_chunks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("group \"", plan.spec.name, "\" has ", chunks, " chunks of ",
                     plan.spec.chunk_bytes, " bytes, and the job's other groups ", chunks_,
                     "; at most ", limits_.max_chunks, " (max_chunks): use larger chunks"));
  }
  return budget_.Check(
      absl::StrCat("group \"", plan.spec.name, "\" (", plan.layout.total_bytes(), " bytes in ",
                   chunks, " chunks, for ", Contributors(plan), " members' contributions and ",
                   ArraysOfResults(plan), " arrays of results)"),
      NeedsOf(plan));
}

uint64_t GroupRegistry::Contributors(const GroupPlan& plan) const {
  // With the policy First, a round closes with its first contribution.
  return std::holds_alternative<First>(plan.spec.policy) ? 1 : members_;
}

uint64_t GroupRegistry::ArraysOfResults(const GroupPlan& plan) const {
  uint64_t arrays = 1;
  if (std::holds_alternative<Gather>(plan.spec.rule)) arrays = members_;
  if (const auto* optimizer = std::get_if<Optimizer>(&plan.spec.rule)) {
    arrays += static_cast<uint64_t>(SlotCount(*optimizer));
  }
  // The compression residuals of results.
  if (std::any_of(plan.spec.compression.begin(), plan.spec.compression.end(),
                  [](const Compression& one) { return !one.result.is_raw(); })) {
    ++arrays;
  }
  uint64_t sets = Arena::kSets;
  const auto* quorum = std::get_if<Quorum>(&plan.spec.policy);
  if (quorum != nullptr && std::holds_alternative<Reduction>(plan.spec.rule)) {
    sets = std::max<uint64_t>(sets, quorum->kept + 1);
  }
  // Each member may be reading a different version.
  if (std::holds_alternative<Staleness>(plan.spec.policy)) sets = members_ + 1;
  return sets * arrays;
}

std::vector<MemoryNeed> GroupRegistry::NeedsOf(const GroupPlan& plan) const {
  std::vector<uint64_t> bytes(bytes_per_server_.size()), chunks(bytes.size());
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    bytes[ToNumber(plan.servers[c])] += plan.layout.chunks()[c].bytes();
    ++chunks[ToNumber(plan.servers[c])];
  }
  const uint64_t results = ArraysOfResults(plan);
  const uint64_t of_plan = PlanBytes(plan);
  std::vector<MemoryNeed> needs(bytes.size());
  for (size_t i = 0; i < needs.size(); ++i) {
    // Only the two sets of a group with the policy Sync count as allocated at registration.
    // Other groups may allocate theirs when they are needed.
    const uint64_t made = std::holds_alternative<Sync>(plan.spec.policy) ? results : 0;
    AddSaturated(needs[i].at_once, Product(made, bytes[i]));
    AddSaturated(needs[i].total, Product(results + Contributors(plan), bytes[i]));
    for (uint64_t* need : {&needs[i].at_once, &needs[i].total}) {
      AddSaturated(*need, of_plan + chunks[i] * kBytesOfChunk);
    }
  }
  return needs;
}

}  // namespace syncgrads::server
