// Memory that two processes of one host share.
//
// A region is a memfd. Its owner seals it against shrinking and growing before
// it hands the file descriptor to a peer, and the peer checks the seals before it
// maps it: nobody can then take pages away under a reader.

#ifndef SYNCGRADS_COMMON_SHM_REGION_H_
#define SYNCGRADS_COMMON_SHM_REGION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace syncgrads {

// A file descriptor that is closed with its owner. Moveable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return number_; }
  bool valid() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Memory of this process that peers can map. Immutable but for its contents.
class SharedRegion {
 public:
  // All of it is backed by memory when this returns. `name` is for people who look
  // at /proc.
  //
  // Errors:
  //   ResourceExhausted  there is not so much memory; has both numbers
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(const std::string& name,
                                                              size_t bytes);
  // A file of this process that has been allocated whole, and keeps its size.
  //
  // Errors:
  //   ResourceExhausted  it cannot be mapped
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Map(FileDescriptor file);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // A descriptor that a peer can map for reading only; to be sent, then closed.
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const;

 private:
  SharedRegion(FileDescriptor descriptor, std::byte* data, size_t size)
      : descriptor_(std::move(descriptor)), data_(data), size_(size) {}

  const FileDescriptor descriptor_;
  std::byte* const data_;
  const size_t size_;
};

// A peer's region, mapped for reading. What is in it can change at any time:
// whatever is checked is copied first.
class PeerRegion {
 public:
  // Errors:
  //   InvalidArgument    it is no sealed memfd
  //   ResourceExhausted  it cannot be mapped
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> Map(const FileDescriptor& descriptor);
  // The same for what a server of this process's own user hands out: its results
  // may lie in a file, which it never cuts. Seals are not asked for.
  //
  // Errors:
  //   InvalidArgument    it is no file of this user
  //   ResourceExhausted  it cannot be mapped
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> MapOwn(const FileDescriptor& descriptor);
  ~PeerRegion();
  PeerRegion(const PeerRegion&) = delete;
  PeerRegion& operator=(const PeerRegion&) = delete;

  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit PeerRegion(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  const absl::Span<const std::byte> bytes_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_REGION_H_
