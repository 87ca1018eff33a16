#include "common/shm/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/start_thread.h"

namespace syncgrads {
namespace {

// Collapses pages into huge ones. Since Linux 6.1; earlier kernels refuse it.
constexpr int kMadvCollapse = 25;

// Number of bytes that one thread allocates at a time: small enough for a progress report.
constexpr size_t kStep = 16 * kHugePageBytes;

// Maximum time for the huge pages of one step. If free memory is fragmented, finding a huge page
// takes long. If a step takes longer, no more huge pages are requested: small pages need a tenth of
// this time.
constexpr absl::Duration kLongestSearch = absl::Milliseconds(500);

// Allocates the pages of one file in steps, on several threads that call Run. Thread-safe.
class Allocation {
 public:
  Allocation(int file, std::byte* data, size_t bytes) : file_(file), data_(data), bytes_(bytes) {}

  // Allocates steps until none is left or one has failed. `progress` may be null.
  void Run(const AllocationProgress& progress) {
    for (size_t at = next_.fetch_add(kStep); at < bytes_; at = next_.fetch_add(kStep)) {
      const size_t length = std::min(kStep, bytes_ - at);
      if (const int error = Allocate(at, length); error != 0) {
        error_ = error;
        next_ = bytes_;
        return;
      }
      done_ += length;
      if (progress) progress(done_);
    }
  }

  // Returns 0, or the errno of a step that failed.
  int error() const { return error_; }

 private:
  int Allocate(size_t at, size_t length) {
    if (huge_) huge_ = AllocateHuge(at, length / kHugePageBytes * kHugePageBytes);
    const int error = posix_fallocate(file_, static_cast<off_t>(at), static_cast<off_t>(length));
    // Fills the page tables as well. Before Linux 5.14, they are filled at first use. The kernel
    // holds a lock of the process meanwhile, for which other threads wait when they allocate
    // memory.
    constexpr int kMadvPopulateWrite = 23;
    for (size_t done = 0; error == 0 && done < length; done += kHugePageBytes) {
      madvise(data_ + at + done, std::min(kHugePageBytes, length - done), kMadvPopulateWrite);
    }
    return error;
  }

  // Requests huge pages. Returns false if no more should be requested. The kernel turns a range of
  // the file into a huge page if any part of the range is allocated, and zeroes the rest of the
  // range.
  bool AllocateHuge(size_t at, size_t length) const {
    for (size_t page = at; page < at + length; page += kHugePageBytes) {
      // The page must be allocated first: writing to it without free memory would be a SIGBUS.
      if (posix_fallocate(file_, static_cast<off_t>(page), 1) != 0) return false;
    }
    const absl::Time begin = MonotonicNow();
    const bool done = length == 0 || madvise(data_ + at, length, kMadvCollapse) == 0;
    // EAGAIN means that a page was busy, so huge pages are still requested for later steps.
    return (done || errno == EAGAIN) && MonotonicNow() - begin < kLongestSearch;
  }

  const int file_;
  std::byte* const data_;
  const size_t bytes_;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> done_ = 0;
  std::atomic<bool> huge_ = true;
  std::atomic<int> error_ = 0;
};

}  // namespace

std::byte* MapPages(const FileDescriptor& file, size_t bytes, int protection, int flags) {
  if (bytes < kHugePageBytes) {
    void* const mapped = mmap(nullptr, bytes, protection, MAP_SHARED | flags, file.get(), 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
  }
  const size_t more = bytes + kHugePageBytes;
  void* const room =
      mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(room);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  void* const mapped =
      mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED | flags, file.get(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(room, more);
    errno = error;
    return nullptr;
  }
  // Releases the address space that was reserved only to find an aligned address. The kernel maps
  // whole pages.
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = before + (bytes + page - 1) / page * page;
  if (before > 0) munmap(begin, before);
  if (end < more) munmap(begin + end, more - end);
  return static_cast<std::byte*>(mapped);
}

int AllocatePages(const FileDescriptor& file, std::byte* data, size_t bytes,
                  const AllocationProgress& progress) {
  Allocation allocation(file.get(), data, bytes);
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t useful = std::min(cores, (bytes + kStep - 1) / kStep) - 1;
  std::vector<std::thread> helpers;
  while (helpers.size() < useful) {
    std::thread helper;
    // If the system has no more threads, the others do all of it.
    if (!StartThread("pages", helper, [&allocation] { allocation.Run(nullptr); }).ok()) break;
    helpers.push_back(std::move(helper));
  }
  allocation.Run(progress);
  for (std::thread& helper : helpers) helper.join();
  return allocation.error();
}

bool HasHugePages() {
  const FileDescriptor file(memfd_create("huge page", MFD_CLOEXEC));
  if (!file.valid() || posix_fallocate(file.get(), 0, kHugePageBytes) != 0) return false;
  std::byte* const data = MapPages(file, kHugePageBytes, PROT_READ | PROT_WRITE, /*flags=*/0);
  if (data == nullptr) return false;
  const bool has_huge_pages = madvise(data, kHugePageBytes, kMadvCollapse) == 0;
  munmap(data, kHugePageBytes);
  return has_huge_pages;
}

}  // namespace syncgrads
