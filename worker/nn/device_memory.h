// A device's memory, and what moves between it and the host's.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_
#define SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace syncgrads {

// A device works through what it is told in the order in which it is told, and may
// still be at it when the call has returned: such an operation is *queued*.
//
// Not thread-safe.
class DeviceMemory {
 public:
  // A queued download. They end in the order in which they were queued.
  enum class Download : uint64_t {};

  virtual ~DeviceMemory() = default;

  // Whether the device's memory is the host's. Nothing is queued then, and a copy
  // from an address to itself is none.
  virtual bool is_host() const = 0;

  // `bytes` of unspecified contents, aligned for any operation; null, with status()
  // telling so, if there is no room for them.
  virtual void* Allocate(size_t bytes) = 0;
  // What is queued is done first. Null is allowed.
  virtual void Free(void* memory) = 0;

  // Memory of the host that is *pinned*: the device copies from and to it by itself.
  // std::bad_alloc if there is no room.
  virtual void* AllocatePinned(size_t bytes) = 0;
  // What is queued is done first. Null is allowed.
  virtual void FreePinned(void* host) = 0;

  // Makes memory of the host that was allocated elsewhere, in whole pages, pinned until
  // Unpin.
  //
  // Errors:
  //   ResourceExhausted  it cannot be pinned; the device works as before
  virtual absl::Status Pin(void* host, size_t bytes) = 0;
  // What is queued is done first. The memory is still there.
  virtual void Unpin(void* host) = 0;

  // Queued: within the device.
  virtual void Copy(const void* from, size_t bytes, void* to) = 0;
  virtual void SetZero(void* memory, size_t bytes) = 0;

  // Operations that are queued later see the bytes of the host as they are now.
  virtual void Upload(const void* host, size_t bytes, void* to) = 0;
  // The same, beside what is queued, which does not use `to`: it waits for earlier uploads
  // only.
  virtual void UploadBeside(const void* host, size_t bytes, void* to) = 0;
  // As Upload, of pinned memory, which must not change before Finish, or a download
  // that is queued later, has ended.
  virtual void UploadPinned(const void* host, size_t bytes, void* to) = 0;

  // Sets pinned memory of the host to what operations queued earlier have made of
  // `from`, which later ones must leave alone until the download has ended.
  virtual Download QueueDownload(const void* from, size_t bytes, void* host) = 0;
  // Whether it has ended, also by an error.
  virtual bool HasEnded(Download download) = 0;
  // Errors: as status(), or DeadlineExceeded if the device does not get to it;
  // names the device.
  virtual absl::Status Wait(Download download) = 0;

  // Sets memory of the host, which need not be pinned, and returns when it is set.
  virtual absl::Status DownloadNow(const void* from, size_t bytes, void* host) = 0;

  // Waits for all that is queued. Errors: as Wait.
  virtual absl::Status Finish() = 0;

  // The first error; since then, operations do nothing.
  //
  // Errors:
  //   ResourceExhausted  Allocate had no room; names what was asked for and what
  //                      there is
  //   Internal           the device failed; what was queued is lost
  virtual absl::Status status() const = 0;
  // Forgets a ResourceExhausted; the device can be used again.
  virtual void ForgetExhaustion() = 0;
};

// Of a device that computes in the host's memory, at once. Allocate throws
// std::bad_alloc.
class HostMemory : public DeviceMemory {
 public:
  bool is_host() const override { return true; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  void FreePinned(void* host) override { Free(host); }
  absl::Status Pin(void*, size_t) override { return absl::OkStatus(); }
  void Unpin(void*) override {}
  void Copy(const void* from, size_t bytes, void* to) override;
  void SetZero(void* memory, size_t bytes) override;
  void Upload(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  void UploadBeside(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  void UploadPinned(const void* host, size_t bytes, void* to) override { Copy(host, bytes, to); }
  Download QueueDownload(const void* from, size_t bytes, void* host) override {
    Copy(from, bytes, host);
    return Download{};
  }
  bool HasEnded(Download) override { return true; }
  absl::Status Wait(Download) override { return absl::OkStatus(); }
  absl::Status DownloadNow(const void* from, size_t bytes, void* host) override {
    Copy(from, bytes, host);
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status status() const override { return absl::OkStatus(); }
  void ForgetExhaustion() override {}
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_MEMORY_H_
