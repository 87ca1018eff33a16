// Where a group's tensors lie in its flat address space, and how that space is
// cut into chunks.
//
// All tensors of one dtype are laid end to end in the order of registration,
// for each dtype in the order of the DType enum; where they are compressed, within
// a dtype for each compression in the order of its first tensor. A chunk is a range
// of at most chunk_bytes of one dtype and compression; a span is the overlap of a tensor and a
// chunk. Small tensors therefore share a chunk and large ones are split. The layout is a function
// of the tensors, their compression and the chunk size alone, so every process works out the same
// one.

#ifndef SYNCGRADS_COMMON_LAYOUT_H_
#define SYNCGRADS_COMMON_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/dtype.h"
#include "common/ids.h"

namespace syncgrads {

inline constexpr uint32_t kDefaultChunkBytes = 1 << 20;
inline constexpr uint32_t kMaxChunkBytes = 4 << 20;
// Of one group: a bound on what a registration can cost a server before anything
// has been pushed.
inline constexpr uint64_t kMaxChunks = 1 << 20;

// A named array. An empty shape is a scalar.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  // The product of the shape; 1 for a scalar.
  uint64_t elements() const;
  uint64_t bytes() const { return elements() * SizeOf(dtype); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// "f32[3,4]"
std::string ToString(const TensorSpec& tensor);

// A part of a tensor that lies in one chunk; all numbers count elements.
struct Span {
  TensorId tensor;
  uint64_t tensor_offset;
  uint64_t chunk_offset;
  uint64_t elements;
};

struct Chunk {
  DType dtype;
  // Among all elements of this dtype.
  uint64_t first_element;
  uint64_t elements;
  // In the order of the layout, which is that of the tensors' ids; they cover the
  // chunk without gaps. A tensor has one at most.
  std::vector<Span> spans;
  // Of each of its tensors.
  Compression compression = {};

  uint64_t bytes() const { return elements * SizeOf(dtype); }
  // The position of a tensor's span; the number of spans if it has none here.
  size_t SpanOf(TensorId tensor) const;
};

// Immutable once created; safe to share between threads.
class Layout {
 public:
  // `chunk_bytes` 0 stands for kDefaultChunkBytes. `compression` has one for each
  // tensor, or none.
  //
  // Errors:
  //   InvalidArgument  no tensors, an empty or repeated name, an unknown dtype,
  //                    an axis that is not positive, more elements than 2^48,
  //                    chunk_bytes below 8 or above kMaxChunkBytes, more
  //                    chunks than kMaxChunks, or compression of another number
  //                    of tensors
  static absl::StatusOr<Layout> Create(std::vector<TensorSpec> tensors, uint32_t chunk_bytes,
                                       absl::Span<const Compression> compression = {});

  absl::Span<const TensorSpec> tensors() const { return tensors_; }
  const TensorSpec& tensor(TensorId id) const { return tensors_[ToNumber(id)]; }
  absl::Span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(ChunkId id) const { return chunks_[ToNumber(id)]; }

  // The chunks that a tensor has spans in: consecutive numbers.
  struct ChunkRange {
    uint32_t first;
    uint32_t count;
  };
  ChunkRange ChunksOf(TensorId id) const { return chunks_of_[ToNumber(id)]; }

  uint64_t total_bytes() const { return total_bytes_; }

 private:
  Layout() = default;

  std::vector<TensorSpec> tensors_;
  std::vector<Chunk> chunks_;
  std::vector<ChunkRange> chunks_of_;
  uint64_t total_bytes_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LAYOUT_H_
