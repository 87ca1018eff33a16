// Lists and writes tar archives.

#ifndef SYNCGRADS_WORKER_DATA_READERS_TAR_H_
#define SYNCGRADS_WORKER_DATA_READERS_TAR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads {

inline constexpr size_t kTarBlock = 512;

// A regular file in an archive.
struct TarMember {
  std::string name;
  // The position of its contents in the archive.
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Reads an archive in the formats ustar, GNU and pax (POSIX.1-2001), without the contents of its
// members. Thread-compatible.
class TarReader {
 public:
  // Returns `size` bytes of the archive from `offset` on; fewer at its end.
  using Read = absl::FunctionRef<absl::StatusOr<std::string>(uint64_t offset, size_t size)>;

  // `path` is for errors. `read` outlives the reader.
  TarReader(std::string path, Read read) : path_(std::move(path)), read_(read) {}

  // Sets `member` to the next regular file; other members are skipped. Returns false after the
  // archive's end.
  //
  // Errors, which name the archive and the position in it:
  //   DataLoss  a header is damaged, or the archive ends without its end marker: it is cut short
  //   others    those of `read`
  absl::StatusOr<bool> Next(TarMember& member);

  // Returns the contents of a member that has at most `max_bytes`. Errors: InvalidArgument if it is
  // longer; those of Next.
  absl::StatusOr<std::string> Contents(const TarMember& member, size_t max_bytes);

 private:
  // Reads `size` bytes at `offset`, through a window that holds the bytes around it.
  absl::StatusOr<absl::string_view> BytesAt(uint64_t offset, size_t size);
  absl::Status Damaged(absl::string_view what) const;
  // Applies the records of a pax header to the next member.
  absl::Status ReadPax(absl::string_view records);

  const std::string path_;
  const Read read_;
  // The position of the next header.
  uint64_t at_ = 0;
  std::string window_;
  uint64_t window_begin_ = 0;
  // From headers before the member's own; empty and nullopt if there are none.
  std::string long_name_;
  std::optional<uint64_t> long_size_;
};

// Returns the header of a member; type '0' is a regular file. `name` has at most 100 bytes, `size`
// is below 8 GiB.
std::string TarHeader(absl::string_view name, uint64_t size, char type = '0');

// The number of bytes that follow a member's contents, up to the next block.
constexpr size_t TarPadding(uint64_t size) { return (kTarBlock - size % kTarBlock) % kTarBlock; }

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_TAR_H_
