// Lists the images that are packed into tar archives.

#ifndef SYNCGRADS_WORKER_DATA_READERS_PACKED_IMAGES_H_
#define SYNCGRADS_WORKER_DATA_READERS_PACKED_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// An image in an archive.
struct PackedImage {
  std::string name;
  // Its class; nullopt if the archive has none for it.
  std::optional<uint32_t> label;
  // The position of its bytes in the archive.
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Expands the first "{A..B}" of a pattern: "t-{008..010}.tar" becomes t-008.tar, t-009.tar and
// t-010.tar. A pattern without one is a name.
//
// InvalidArgument if A or B is not a number, B is less than A, or there are more than a million
// names.
absl::StatusOr<std::vector<std::string>> ExpandNames(const std::string& pattern);

// Lists the images of an archive, in its order. A file NAME.jpg or NAME.jpeg is an image, and
// NAME.cls beside it, before the next image or after it, has the number of its class as text. NAME
// ends at the first dot after the last slash. Other files are ignored.
//
// If there is a file `path`.csv, which ps-pack writes, it is read instead of the archive's headers:
// see IndexLine.
//
// Errors:
//   InvalidArgument  a class is no number; or a line of the index is malformed
//   others           those of TarReader and Storage
absl::StatusOr<std::vector<PackedImage>> ListPacked(const Storage& storage,
                                                    const std::string& path);

// The header and the lines of an archive's index, as CSV.
inline constexpr absl::string_view kIndexHeader = "name,class,offset,size\n";
std::string IndexLine(const PackedImage& image);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_PACKED_IMAGES_H_
