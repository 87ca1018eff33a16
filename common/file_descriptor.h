// A file descriptor with an owner.

#ifndef SYNCGRADS_COMMON_FILE_DESCRIPTOR_H_
#define SYNCGRADS_COMMON_FILE_DESCRIPTOR_H_

#include <utility>

namespace syncgrads {

// Owns a file descriptor and closes it on destruction. Moveable. Not thread-safe.
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
  // Returns the descriptor and gives up its ownership: the caller must close it.
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_FILE_DESCRIPTOR_H_
