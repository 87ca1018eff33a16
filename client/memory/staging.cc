#include "client/memory/staging.h"

#include "common/kernels/copy.h"
#include "common/wire/frame.h"

namespace syncgrads::client {
Staging::Staging(const Layout& layout) : layout_(layout) {
  for (const Chunk& chunk : layout_.chunks()) {
    offsets_.push_back(bytes_);
    bytes_ += (chunk.bytes() + 63) / 64 * 64;
  }
}

std::byte* Staging::MemoryOf(ChunkId chunk, SharedBuffers& buffers) {
  MutexLock lock(mutex_);
  if (memory_ == nullptr && !refused_) {
    absl::StatusOr<const SharedBuffers::Region*> region = buffers.Allocate(bytes_);
    refused_ = !region.ok();
    if (region.ok()) memory_ = (*region)->memory->data();
  }
  return memory_ == nullptr ? nullptr : memory_ + offsets_[ToNumber(chunk)];
}

std::vector<absl::Span<const std::byte>> Staging::Share(
    SharedBuffers& buffers, ChunkId chunk, std::vector<absl::Span<const std::byte>> spans) {
  std::byte* to = nullptr;  // where the next span is copied to
  for (absl::Span<const std::byte>& span : spans) {
    if (buffers.Find(span).has_value()) continue;
    if (to == nullptr) to = MemoryOf(chunk, buffers);
    if (to == nullptr) return spans;
    CopyFar(to, span.data(), span.size());
    span = {to, span.size()};
    to += span.size();
  }
  return spans;
}

}  // namespace syncgrads::client
