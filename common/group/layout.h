// The layout: the position of a group's tensors in one flat address space, and the chunks into
// which this space is cut.
//
// All tensors of one dtype are laid end to end in the order of registration; the dtypes follow each
// other in the order of the DType enum. If tensors are compressed, those of one dtype are laid out
// by compression, in the order of each compression's first tensor. A chunk is a range of at most
// chunk_bytes that has one dtype and one compression. A span is the overlap of a tensor and a
// chunk. Small tensors therefore share a chunk, and large tensors are split. The layout depends
// only on the tensors, their compression and the chunk sizes, so every process computes the same
// layout.

#ifndef SYNCGRADS_COMMON_GROUP_LAYOUT_H_
#define SYNCGRADS_COMMON_GROUP_LAYOUT_H_

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
// The largest message of the data plane is a push. It has a chunk, in round 0 also two optimizer
// slots of that chunk, and a header that may list many absent spans.
inline constexpr int kMaxMessageBytes = 3 * kMaxChunkBytes + (8 << 20);
// Minimum chunk size of a group that is larger than kSmallGroupBytes.
inline constexpr uint32_t kMinChunkBytes = 4 << 10;
inline constexpr uint64_t kSmallGroupBytes = 1 << 20;
// Maximum number of chunks of one group. It bounds what a registration can cost a server before
// anything has been pushed: a chunk costs some KiB in addition to its values.
inline constexpr uint64_t kMaxChunks = 1 << 16;
// Maximum number of tensors of one group. It bounds how long a registration of many small tensors
// keeps the coordinator from its other work.
inline constexpr size_t kMaxTensors = 1 << 18;
// Maximum number of axes of a tensor.
inline constexpr size_t kMaxAxes = 64;

// A named array. A scalar has an empty shape.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  // Returns the product of the shape; 1 for a scalar.
  uint64_t elements() const;
  uint64_t bytes() const { return elements() * SizeOf(dtype); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Returns the dtype and the shape, for example "f32[3,4]".
std::string ToString(const TensorSpec& tensor);

// The part of one tensor that lies in one chunk. All numbers count elements.
struct Span {
  TensorId tensor;
  uint64_t tensor_offset;
  uint64_t chunk_offset;
  uint64_t elements;
};

struct Chunk {
  DType dtype;
  // Position of the chunk's first element among all elements of this dtype.
  uint64_t first_element;
  uint64_t elements;
  // The chunk's spans in layout order, which is the order of tensor ids. They cover the chunk
  // without gaps. A tensor has at most one span in a chunk.
  std::vector<Span> spans;
  // The compression of each tensor in this chunk.
  Compression compression = {};

  uint64_t bytes() const { return elements * SizeOf(dtype); }
  // Returns the position of the tensor's span in `spans`; spans.size() if the tensor has no span
  // here.
  size_t SpanOf(TensorId tensor) const;
};

// Checks the number of tensors of a group, in constant time.
//
// Errors:
//   InvalidArgument  more than kMaxTensors; the message names both numbers
absl::Status CheckTensorCount(size_t tensors);

// Checks the tensors of a group, whatever the chunk size.
//
// Errors:
//   InvalidArgument  no tensors, or more than kMaxTensors; an empty, repeated, too long or
//   unprintable name (see
//                    common/names.h); names of more than kMaxGroupTextBytes in all; an
//                    unknown dtype; more axes than kMaxAxes, or one that is not positive;
//                    more elements than 2^48 in all
absl::Status CheckTensors(absl::Span<const TensorSpec> tensors);

// The sizes of a group's chunks, in bytes.
struct ChunkSizes {
  // Implicit, because usually all chunks have one size.
  ChunkSizes(uint32_t bytes, uint32_t first_bytes = 0)  // NOLINT
      : bytes(bytes), first_bytes(first_bytes) {}

  // The largest size. 0: kDefaultChunkBytes.
  uint32_t bytes;
  // If not 0, the first chunk of each dtype and compression has at most this size, and each
  // following one at most twice that of the chunk before. A model's first tensors are needed first
  // and their gradients come last, so that a step waits for the first chunk more than for others.
  uint32_t first_bytes;
};

// A group's tensors, chunks and spans. Immutable once created; safe to share between threads.
class Layout {
 public:
  // Creates the layout. `compression` has one entry for each tensor, or is empty.
  //
  // The time is near-linear in the number of tensors and chunks.
  //
  // Errors:
  //   InvalidArgument  CheckTensors refuses the tensors; a size in `sizes` is below 8, below
  //                    kMinChunkBytes for a group larger than kSmallGroupBytes, or above
  //                    kMaxChunkBytes; there are more chunks than kMaxChunks; Validate refuses
  //                    a compression; or `compression` has another size than `tensors`
  static absl::StatusOr<Layout> Create(std::vector<TensorSpec> tensors, ChunkSizes sizes,
                                       absl::Span<const Compression> compression = {});

  // Create for tensors that have passed CheckTensors, which are not checked again.
  static absl::StatusOr<Layout> CreateChecked(std::vector<TensorSpec> tensors, ChunkSizes sizes,
                                              absl::Span<const Compression> compression = {});

  // Checks what Create checks, except for the tensors, without creating a layout. `tensors` have
  // passed CheckTensors.
  //
  // Errors:
  //   InvalidArgument  Create would refuse `sizes` or `compression`
  static absl::Status CheckChunks(absl::Span<const TensorSpec> tensors, ChunkSizes sizes,
                                  absl::Span<const Compression> compression = {});

  absl::Span<const TensorSpec> tensors() const { return tensors_; }
  const TensorSpec& tensor(TensorId id) const { return tensors_[ToNumber(id)]; }
  absl::Span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(ChunkId id) const { return chunks_[ToNumber(id)]; }

  // The chunks in which a tensor has spans. Their numbers are consecutive.
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

#endif  // SYNCGRADS_COMMON_GROUP_LAYOUT_H_
