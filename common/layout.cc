#include "common/layout.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 48;

absl::Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  if (SizeOf(tensor.dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", tensor.name, "\" has the unknown dtype ", static_cast<int>(tensor.dtype)));
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

// Tensors that are laid end to end, in this order.
struct Section {
  DType dtype;
  Compression compression;
  std::vector<uint32_t> tensors;
};

std::vector<Section> SectionsOf(absl::Span<const TensorSpec> tensors,
                                absl::Span<const Compression> compression) {
  std::vector<Section> sections;
  for (DType dtype : kAllDTypes) {
    const size_t first = sections.size();
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].dtype != dtype) continue;
      const Compression wanted = compression.empty() ? Compression() : compression[t];
      auto section =
          std::find_if(sections.begin() + static_cast<ptrdiff_t>(first), sections.end(),
                       [&](const Section& section) { return section.compression == wanted; });
      if (section == sections.end()) {
        section = sections.insert(sections.end(), {dtype, wanted, {}});
      }
      section->tensors.push_back(t);
    }
  }
  return sections;
}

// How many chunks the tensors will be cut into.
uint64_t CountChunks(absl::Span<const TensorSpec> tensors, absl::Span<const Section> sections,
                     uint32_t chunk_bytes) {
  uint64_t chunks = 0;
  for (const Section& section : sections) {
    uint64_t elements = 0;
    for (const uint32_t t : section.tensors) elements += tensors[t].elements();
    const uint64_t capacity = chunk_bytes / SizeOf(section.dtype);
    chunks += (elements + capacity - 1) / capacity;
  }
  return chunks;
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

absl::StatusOr<Layout> Layout::Create(std::vector<TensorSpec> tensors, uint32_t chunk_bytes,
                                      absl::Span<const Compression> compression) {
  if (chunk_bytes == 0) chunk_bytes = kDefaultChunkBytes;
  if (chunk_bytes < 8 || chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", chunk_bytes, "; must be 8 to ", kMaxChunkBytes));
  }
  if (tensors.empty()) return absl::InvalidArgumentError("a group has no tensors");
  if (!compression.empty() && compression.size() != tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a group has the compression of ",
                                                   compression.size(), " tensors, and ",
                                                   tensors.size(), " tensors"));
  }
  absl::flat_hash_set<std::string> names;
  uint64_t total_elements = 0;
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
  }

  const std::vector<Section> sections = SectionsOf(tensors, compression);
  if (const uint64_t chunks = CountChunks(tensors, sections, chunk_bytes); chunks > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrCat("the group has ", chunks, " chunks of ",
                                                   chunk_bytes, " bytes; at most ", kMaxChunks,
                                                   ": use larger chunks, or several groups"));
  }

  Layout layout;
  layout.tensors_ = std::move(tensors);
  layout.chunks_of_.resize(layout.tensors_.size());
  uint64_t position = 0;  // among all elements of a dtype
  for (size_t i = 0; i < sections.size(); ++i) {
    const Section& section = sections[i];
    if (i == 0 || sections[i - 1].dtype != section.dtype) position = 0;
    const uint64_t capacity = chunk_bytes / SizeOf(section.dtype);
    bool open = false;  // the last chunk is of this section and has room
    for (const uint32_t t : section.tensors) {
      layout.total_bytes_ += layout.tensors_[t].bytes();
      const uint64_t elements = layout.tensors_[t].elements();
      for (uint64_t offset = 0; offset < elements;) {
        if (!open) {
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
