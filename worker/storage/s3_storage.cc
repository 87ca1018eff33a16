#include "worker/storage/s3_storage.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/memory_limit.h"
#include "common/start_thread.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr size_t kPartsAtATime = 4;

std::string AsDirectory(absl::string_view path) {
  const absl::string_view name = absl::StripSuffix(path, "/");
  return name.empty() ? "" : absl::StrCat(name, "/");
}

}  // namespace

S3Storage::S3Storage(S3StorageOptions options)
    : prefix_(AsDirectory(options.prefix)),
      part_bytes_(options.part_bytes),
      cache_(std::move(options.cache)),
      client_(std::move(options.s3)) {}

// Normalises the path, as the file system does: "./a//b" becomes "a/b".
std::string S3Storage::KeyOf(const std::string& path) const {
  const std::string normal = std::filesystem::path(path).lexically_normal().string();
  return absl::StrCat(prefix_, normal == "." ? "" : normal);
}

std::string S3Storage::NameOf(const std::string& path) const { return client_.NameOf(KeyOf(path)); }

bool S3Storage::IsFresh(const std::string& key, const std::string& version) const {
  MutexLock lock(mutex_);
  return fresh_.contains(absl::HashOf(key, version));
}

std::string S3Storage::VersionOf(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto it = versions_.find(key);
  return it == versions_.end() ? "" : it->second;
}

void S3Storage::SetFresh(const std::string& key, const std::string& version) const {
  MutexLock lock(mutex_);
  fresh_.insert(absl::HashOf(key, version));
}

absl::StatusOr<std::string> S3Storage::Read(const std::string& path, size_t max_bytes) const {
  const std::string key = KeyOf(path);
  if (cache_ == nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(FileCache::Entry entry, Get(key, max_bytes, std::nullopt));
    return std::move(entry.contents);
  }
  // Data sets of several buckets may share the cache, so the name includes the bucket.
  const std::string name = client_.NameOf(key);
  std::optional<FileCache::Entry> kept = cache_->Find(name);
  if (kept.has_value() && IsFresh(key, kept->version) && kept->contents.size() <= max_bytes) {
    return std::move(kept->contents);
  }
  const std::string kept_version = kept.has_value() ? kept->version : "";
  SYNCGRADS_ASSIGN_OR_RETURN(FileCache::Entry entry, Get(key, max_bytes, std::move(kept)));
  if (entry.version != kept_version) cache_->Keep(name, entry.version, entry.contents);
  SetFresh(key, entry.version);
  return std::move(entry.contents);
}

absl::StatusOr<std::string> S3Storage::ReadRange(const std::string& path, uint64_t offset,
                                                 size_t size) const {
  const std::string key = KeyOf(path);
  if (size == 0) return std::string();
  if (cache_ == nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(S3Client::Part part, GetRange(key, {offset, offset + size}, ""));
    return std::move(part.bytes);
  }
  std::string bytes;
  const uint64_t first = offset / kBlockBytes;
  for (uint64_t block = first; block * kBlockBytes < offset + size; ++block) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string read, ReadBlock(key, block));
    bytes += read;
    if (read.size() < kBlockBytes) break;  // the object's end
  }
  const size_t skipped = static_cast<size_t>(offset - first * kBlockBytes);
  return skipped < bytes.size() ? bytes.substr(skipped, size) : std::string();
}

absl::StatusOr<S3Client::Part> S3Storage::GetRange(const std::string& key, S3Client::Range range,
                                                   const std::string& kept) const {
  std::string version = VersionOf(key);
  S3Client::Condition condition = {.version = version, .other_than = version.empty() ? kept : ""};
  absl::StatusOr<S3Client::Part> part = client_.GetPart(key, range, condition);
  const bool has_version = part.ok() && (part->unchanged || !part->bytes.empty());
  // After the object's end, its version is unknown.
  if (!has_version && !absl::IsAborted(part.status())) return part;
  if (has_version) {
    const std::string& found = part->unchanged ? kept : part->version;
    MutexLock lock(mutex_);
    version = versions_.try_emplace(key, found).first->second;
    if (version == found) return part;
  }
  return absl::AbortedError(absl::StrCat(
      client_.NameOf(key), " has changed since this process began to read it: it had version ",
      version, has_version ? absl::StrCat(", and has version ", part->version) : ""));
}

absl::StatusOr<std::string> S3Storage::ReadBlock(const std::string& key, uint64_t block) const {
  const std::string name = absl::StrCat(client_.NameOf(key), "#", block);
  std::optional<FileCache::Entry> kept = cache_->Find(name);
  if (kept.has_value() && !kept->version.empty() && kept->version == VersionOf(key)) {
    return std::move(kept->contents);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(S3Client::Part part,
                             GetRange(key, {block * kBlockBytes, (block + 1) * kBlockBytes},
                                      kept.has_value() ? kept->version : ""));
  if (part.unchanged) return std::move(kept->contents);
  if (!part.bytes.empty()) cache_->Keep(name, part.version, part.bytes);
  return std::move(part.bytes);
}

absl::StatusOr<FileCache::Entry> S3Storage::Get(const std::string& key, size_t max_bytes,
                                                std::optional<FileCache::Entry> kept) const {
  S3Client::Condition condition;
  if (kept.has_value()) condition.other_than = kept->version;
  SYNCGRADS_ASSIGN_OR_RETURN(S3Client::Part first,
                             client_.GetPart(key, {0, part_bytes_}, condition));
  if (first.unchanged) return *std::move(kept);
  if (first.object_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(client_.NameOf(key), " has ", first.object_bytes,
                                                   " bytes, but at most ", max_bytes,
                                                   " are allowed"));
  }
  FileCache::Entry entry{std::move(first.version), std::move(first.bytes)};
  if (first.object_bytes > part_bytes_) {
    // The number is what the store claims.
    SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
    if (first.object_bytes > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat(client_.NameOf(key), " has ", first.object_bytes, " bytes, but only ",
                       available, " bytes of memory are available"));
    }
    entry.contents.resize(first.object_bytes);
    SYNCGRADS_RETURN_IF_ERROR(
        GetRest(key, entry.version, absl::MakeSpan(entry.contents).subspan(part_bytes_)));
  }
  return entry;
}

absl::Status S3Storage::GetRest(const std::string& key, const std::string& version,
                                absl::Span<char> rest) const {
  const size_t parts = (rest.size() + part_bytes_ - 1) / part_bytes_;
  std::atomic<size_t> next{0};
  Mutex mutex;
  absl::Status error;
  const auto get_parts = [&] {
    for (size_t part = next++; part < parts; part = next++) {
      const absl::Span<char> bytes = rest.subspan(part * part_bytes_, part_bytes_);
      const uint64_t begin = (part + 1) * part_bytes_;
      const absl::StatusOr<S3Client::Part> got =
          client_.GetPart(key, {begin, begin + bytes.size()}, {.version = version});
      if (got.ok() && got->bytes.size() == bytes.size()) {
        std::copy(got->bytes.begin(), got->bytes.end(), bytes.begin());
        continue;
      }
      next = parts;  // stops the other threads
      MutexLock lock(mutex);
      error = got.ok() ? absl::AbortedError(absl::StrCat(
                             client_.NameOf(key), " has become shorter while it was being read"))
                       : got.status();
    }
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < std::min(parts, kPartsAtATime)) {
    std::thread other;
    // If the system has no more threads, fewer get all parts.
    if (!StartThread("parts of an object", other, get_parts).ok()) break;
    others.push_back(std::move(other));
  }
  get_parts();
  for (std::thread& other : others) other.join();
  return error;
}

absl::StatusOr<bool> S3Storage::IsDirectory(const std::string& path) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const S3Client::Listing listing,
                             client_.List(AsDirectory(KeyOf(path))));
  return !listing.empty;
}

absl::StatusOr<std::vector<std::string>> S3Storage::ListDirectories(const std::string& path) const {
  SYNCGRADS_ASSIGN_OR_RETURN(S3Client::Listing listing, client_.List(AsDirectory(KeyOf(path))));
  if (listing.empty) return absl::NotFoundError(absl::StrCat(NameOf(path), " has no objects"));
  return std::move(listing.directories);
}

}  // namespace syncgrads
