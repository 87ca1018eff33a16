#include "common/group/layout.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/names.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 48;

absl::Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the name of a tensor", tensor.name, kMaxTensorNameBytes));
  if (SizeOf(tensor.dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", tensor.name, "\" has unknown dtype ", static_cast<int>(tensor.dtype)));
  }
  if (tensor.shape.size() > kMaxAxes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", tensor.name, "\" has ", tensor.shape.size(), " axes; at most ", kMaxAxes));
  }
  uint64_t elements = 1;
  for (int64_t axis : tensor.shape) {
    if (axis <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" has shape [",
                                                     absl::StrJoin(tensor.shape, ","),
                                                     "]; every axis must be positive"));
    }
    if (static_cast<uint64_t>(axis) > kMaxElements / elements) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" has shape [",
                                                     absl::StrJoin(tensor.shape, ","),
                                                     "]; more than 2^48 elements"));
    }
    elements *= static_cast<uint64_t>(axis);
  }
  return absl::OkStatus();
}

// Tensors of one dtype and compression, which are laid end to end in this order.
struct Section {
  DType dtype;
  Compression compression;
  std::vector<uint32_t> tensors;
};

std::vector<Section> SectionsOf(absl::Span<const TensorSpec> tensors,
                                absl::Span<const Compression> compression) {
  using Key = std::tuple<DType, Codec, double, Codec, double>;
  absl::flat_hash_map<Key, size_t> positions;
  std::vector<Section> sections;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    const Compression wanted = compression.empty() ? Compression() : compression[t];
    const Key key = {tensors[t].dtype, wanted.push.codec, wanted.push.fraction, wanted.result.codec,
                     wanted.result.fraction};
    const auto [position, is_new] = positions.try_emplace(key, sections.size());
    if (is_new) sections.push_back({tensors[t].dtype, wanted, {}});
    sections[position->second].tensors.push_back(t);
  }
  // Sections of one dtype stay in the order of their first tensors.
  std::stable_sort(sections.begin(), sections.end(),
                   [](const Section& a, const Section& b) { return a.dtype < b.dtype; });
  return sections;
}

// How many elements the chunks of a section have at most, one after the other.
class Capacities {
 public:
  // `sizes` has no 0.
  Capacities(ChunkSizes sizes, DType dtype)
      : most_(sizes.bytes / SizeOf(dtype)),
        next_(std::min(sizes.first_bytes / SizeOf(dtype), most_)) {}

  // The most elements of the next chunk.
  uint64_t Next() {
    const uint64_t next = next_;
    next_ = std::min(2 * next_, most_);
    return next;
  }
  uint64_t most() const { return most_; }

 private:
  const uint64_t most_;
  uint64_t next_;
};

// Returns the number of chunks that the tensors will be cut into.
uint64_t CountChunks(absl::Span<const TensorSpec> tensors, absl::Span<const Section> sections,
                     ChunkSizes sizes) {
  uint64_t chunks = 0;
  for (const Section& section : sections) {
    uint64_t elements = 0;
    for (const uint32_t t : section.tensors) elements += tensors[t].elements();
    Capacities capacities(sizes, section.dtype);
    for (uint64_t capacity = capacities.Next(); capacity < capacities.most() && elements > 0;
         capacity = capacities.Next()) {
      elements -= std::min(elements, capacity);
      ++chunks;
    }
    chunks += (elements + capacities.most() - 1) / capacities.most();
  }
  return chunks;
}

absl::Status CheckCompression(absl::Span<const TensorSpec> tensors,
                              absl::Span<const Compression> compression) {
  if (compression.empty()) return absl::OkStatus();
  if (compression.size() != tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a group has compressions for ",
                                                   compression.size(), " tensors, but has ",
                                                   tensors.size(), " tensors"));
  }
  // Each encoding is checked before tensors are compared by compression: a NaN fraction compares
  // unequal to itself, so every tensor would get a section of its own.
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (const Encoding& encoding : {compression[t].push, compression[t].result}) {
      const absl::Status valid = Validate(encoding);
      if (valid.ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the compression of tensor \"", tensors[t].name, "\": ", valid.message()));
    }
  }
  return absl::OkStatus();
}

// Checks the size of chunks of a group that has `total` bytes.
absl::Status CheckSize(const char* field, uint32_t bytes, uint64_t total) {
  if (bytes < 8 || bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", bytes, "; must be 8 to ", kMaxChunkBytes));
  }
  if (total <= kSmallGroupBytes || bytes >= kMinChunkBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", bytes, " in a group of ", total,
                                                 " bytes; must be at least ", kMinChunkBytes,
                                                 " above ", kSmallGroupBytes, " bytes"));
}

// Returns the sections of tensors if they can be cut into chunks of these sizes, none of which is
// 0.
absl::StatusOr<std::vector<Section>> Cut(absl::Span<const TensorSpec> tensors, ChunkSizes sizes,
                                         absl::Span<const Compression> compression) {
  SYNCGRADS_RETURN_IF_ERROR(CheckCompression(tensors, compression));
  uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.bytes();
  SYNCGRADS_RETURN_IF_ERROR(CheckSize("chunk_bytes", sizes.bytes, total));
  SYNCGRADS_RETURN_IF_ERROR(CheckSize("first_chunk_bytes", sizes.first_bytes, total));
  std::vector<Section> sections = SectionsOf(tensors, compression);
  const uint64_t chunks = CountChunks(tensors, sections, sizes);
  if (chunks <= kMaxChunks) return sections;
  return absl::InvalidArgumentError(absl::StrCat("the group has ", chunks, " chunks of ",
                                                 sizes.bytes, " bytes; at most ", kMaxChunks,
                                                 ": use larger chunks, or several groups"));
}

// Replaces zeros.
ChunkSizes WithDefaults(ChunkSizes sizes) {
  const uint32_t bytes = sizes.bytes == 0 ? kDefaultChunkBytes : sizes.bytes;
  return {bytes, sizes.first_bytes == 0 ? bytes : sizes.first_bytes};
}

}  // namespace

uint64_t TensorSpec::elements() const {
  uint64_t product = 1;
  for (int64_t axis : shape) product *= static_cast<uint64_t>(axis);
  return product;
}

std::string ToString(const TensorSpec& tensor) {
  return absl::StrCat(NameOf(tensor.dtype), "[", absl::StrJoin(tensor.shape, ","), "]");
}

size_t Chunk::SpanOf(TensorId tensor) const {
  const auto span =
      std::lower_bound(spans.begin(), spans.end(), tensor,
                       [](const Span& span, TensorId wanted) { return span.tensor < wanted; });
  return span != spans.end() && span->tensor == tensor ? span - spans.begin() : spans.size();
}

absl::Status CheckTensorCount(size_t tensors) {
  if (tensors <= kMaxTensors) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a group has ", tensors, " tensors; at most ",
                                                 kMaxTensors, ": use several groups"));
}

absl::Status CheckTensors(absl::Span<const TensorSpec> tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("a group has no tensors");
  SYNCGRADS_RETURN_IF_ERROR(CheckTensorCount(tensors.size()));
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(tensors.size());
  uint64_t total_elements = 0;
  size_t text_bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    SYNCGRADS_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" is registered twice"));
    }
    total_elements += tensor.elements();
    if (total_elements > kMaxElements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the group has more than 2^48 elements, reached at tensor \"", tensor.name, "\""));
    }
    text_bytes += tensor.name.size();
  }
  if (text_bytes <= kMaxGroupTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the names of the group's ", tensors.size(), " tensors have ", text_bytes,
                   " bytes in all, at most ", kMaxGroupTextBytes, " are allowed"));
}

absl::Status Layout::CheckChunks(absl::Span<const TensorSpec> tensors, ChunkSizes sizes,
                                 absl::Span<const Compression> compression) {
  return Cut(tensors, WithDefaults(sizes), compression).status();
}

absl::StatusOr<Layout> Layout::Create(std::vector<TensorSpec> tensors, ChunkSizes sizes,
                                      absl::Span<const Compression> compression) {
  SYNCGRADS_RETURN_IF_ERROR(CheckTensors(tensors));
  return CreateChecked(std::move(tensors), sizes, compression);
}

absl::StatusOr<Layout> Layout::CreateChecked(std::vector<TensorSpec> tensors, ChunkSizes sizes,
                                             absl::Span<const Compression> compression) {
  sizes = WithDefaults(sizes);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<Section> sections, Cut(tensors, sizes, compression));
  Layout layout;
  layout.tensors_ = std::move(tensors);
  layout.chunks_of_.resize(layout.tensors_.size());
  uint64_t position = 0;  // of the next element, among all elements of its dtype
  for (size_t i = 0; i < sections.size(); ++i) {
    const Section& section = sections[i];
    if (i == 0 || sections[i - 1].dtype != section.dtype) position = 0;
    Capacities capacities(sizes, section.dtype);
    uint64_t capacity = 0;  // of the last chunk
    bool open = false;      // whether the last chunk belongs to this section and has room
    for (const uint32_t t : section.tensors) {
      layout.total_bytes_ += layout.tensors_[t].bytes();
      const uint64_t elements = layout.tensors_[t].elements();
      for (uint64_t offset = 0; offset < elements;) {
        if (!open) {
          capacity = capacities.Next();
          layout.chunks_.push_back({section.dtype, position, 0, {}, section.compression});
        }
        Chunk& chunk = layout.chunks_.back();
        const uint64_t taken = std::min(elements - offset, capacity - chunk.elements);
        if (offset == 0) {
          layout.chunks_of_[t].first = static_cast<uint32_t>(layout.chunks_.size() - 1);
        }
        chunk.spans.push_back({TensorId{t}, offset, chunk.elements, taken});
        chunk.elements += taken;
        offset += taken;
        position += taken;
        open = chunk.elements < capacity;
      }
      layout.chunks_of_[t].count =
          static_cast<uint32_t>(layout.chunks_.size()) - layout.chunks_of_[t].first;
    }
  }
  return layout;
}

}  // namespace syncgrads
