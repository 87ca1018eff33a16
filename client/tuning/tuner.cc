#include "client/tuning/tuner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/group/layout.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

constexpr uint32_t kLeastChunkBytes = 64 << 10;

std::string Kibibytes(uint32_t bytes) { return absl::StrCat(bytes >> 10, " KiB"); }

}  // namespace

absl::Duration Median(std::vector<absl::Duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::string Milliseconds(absl::Duration time) {
  return absl::StrCat(absl::ToDoubleMilliseconds(absl::Trunc(time, absl::Microseconds(10))), " ms");
}

std::string ChunkChoice::ToString() const {
  const std::string usually =
      absl::StrCat(Kibibytes(usual.chunk_bytes), ", the default, takes ", Milliseconds(usual.step));
  if (best.chunk_bytes == usual.chunk_bytes) {
    return absl::StrCat("chunk size: a step in chunks of ", usually, ", and no other was faster");
  }
  return absl::StrCat("chunk size: a step in chunks of ", Kibibytes(best.chunk_bytes), " takes ",
                      Milliseconds(best.step), "; of ", usually);
}

absl::StatusOr<ChunkChoice> ChooseChunks(const TryChunks& try_chunks) {
  ChunkChoice choice;
  SYNCGRADS_ASSIGN_OR_RETURN(choice.usual, try_chunks(0));
  choice.best = choice.usual;
  while (choice.best.chunk_bytes / 2 >= kLeastChunkBytes) {
    SYNCGRADS_ASSIGN_OR_RETURN(const ChunkTrial half, try_chunks(choice.best.chunk_bytes / 2));
    if (!IsBetter(half.step, choice.best.step)) break;
    choice.best = half;
  }
  if (choice.best.chunk_bytes < choice.usual.chunk_bytes) return choice;
  while (choice.best.chunk_bytes <= kMaxChunkBytes / 2) {
    SYNCGRADS_ASSIGN_OR_RETURN(const ChunkTrial twice, try_chunks(choice.best.chunk_bytes * 2));
    if (!IsBetter(twice.step, choice.best.step)) break;
    choice.best = twice;
  }
  return choice;
}

}  // namespace syncgrads::client
