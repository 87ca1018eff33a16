// A file's name is the hash of its key; while it is written, a random number follows. Its contents
// are the lengths of key, version and contents (8 bytes each, little-endian), the hash of what
// follows (8 bytes), key, version, contents.

#include "worker/storage/file_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

constexpr absl::string_view kSuffix = ".cached";
// The fraction 1 / kSlack of the cache is left free when files are removed, and may be written
// before the directory is scanned again.
constexpr uint64_t kSlack = 16;

// A file that has not been written for this time is unfinished: its writer was killed.
constexpr std::chrono::hours kLongestWrite(1);

struct Header {
  uint64_t key_bytes;
  uint64_t version_bytes;
  uint64_t content_bytes;
  uint64_t hash;
};

uint64_t Hash(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Found {
  std::filesystem::path path;
  std::filesystem::file_time_type used;
  uint64_t bytes;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileCache>> FileCache::Open(const std::string& directory,
                                                           uint64_t max_bytes) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::InternalError(absl::StrCat("cannot create ", directory, ": ", error.message()));
  }
  std::unique_ptr<FileCache> cache(new FileCache(directory, max_bytes));
  cache->Shrink();
  return cache;
}

std::optional<FileCache::Entry> FileCache::Find(const std::string& key) const {
  const std::string path = PathOf(key);
  const absl::StatusOr<std::string> file = ReadFile(path, std::numeric_limits<size_t>::max());
  Header header;
  if (!file.ok() || file->size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, file->data(), sizeof(header));
  absl::string_view rest = *file;
  rest.remove_prefix(sizeof(header));
  if (Hash(rest) != header.hash || header.key_bytes > rest.size() ||
      header.version_bytes > rest.size() - header.key_bytes ||
      rest.substr(0, header.key_bytes) != key) {
    return std::nullopt;
  }
  rest.remove_prefix(header.key_bytes);
  // Marks the file as the most recently used.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return Entry{std::string(rest.substr(0, header.version_bytes)),
               std::string(rest.substr(header.version_bytes))};
}

void FileCache::Keep(const std::string& key, absl::string_view version,
                     absl::string_view contents) {
  if (contents.size() > max_bytes_) return;
  const std::string rest = absl::StrCat(key, version, contents);
  const Header header = {key.size(), version.size(), contents.size(), Hash(rest)};
  const absl::string_view pieces[] = {
      absl::string_view(reinterpret_cast<const char*>(&header), sizeof(header)), rest};
  if (!ReplaceFile(PathOf(key), pieces).ok()) return;
  {
    MutexLock lock(mutex_);
    written_ += rest.size();
    if (written_ < max_bytes_ / kSlack) return;
    written_ = 0;
  }
  Shrink();
}

void FileCache::Shrink() {
  std::vector<Found> files;
  uint64_t bytes = 0;
  std::error_code error;
  const auto now = std::filesystem::file_time_type::clock::now();
  for (std::filesystem::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (!absl::EndsWith(it->path().native(), kSuffix)) {
      const bool is_temporary = absl::StrContains(it->path().filename().native(), kSuffix);
      const auto written = it->last_write_time(gone);
      if (is_temporary && !gone && now - written > kLongestWrite) {
        std::filesystem::remove(it->path(), gone);
      }
      continue;
    }
    const Found found = {it->path(), it->last_write_time(gone), it->file_size(gone)};
    if (gone) continue;
    bytes += found.bytes;
    files.push_back(found);
  }
  if (bytes <= max_bytes_) return;
  std::sort(files.begin(), files.end(),
            [](const Found& a, const Found& b) { return a.used < b.used; });
  for (const Found& file : files) {
    if (bytes <= max_bytes_ - max_bytes_ / kSlack) return;
    std::filesystem::remove(file.path, error);
    bytes -= file.bytes;
  }
}

std::string FileCache::PathOf(const std::string& key) const {
  return absl::StrCat(directory_, "/", absl::Hex(Hash(key), absl::kZeroPad16), kSuffix);
}

}  // namespace syncgrads
