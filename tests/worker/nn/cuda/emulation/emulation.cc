#include "tests/worker/nn/cuda/emulation/emulation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "tests/worker/nn/cuda/emulation/counting.h"
#include "worker/base/split_mix.h"

// Numbers identify the records of an event: `recorded` is the last that was queued, and `reached`
// is the last that a stream has executed. A stream waits for the record that was the last when the
// wait was queued.
struct EmulatedEvent {
  uint64_t recorded = 0;
  uint64_t reached = 0;
  absl::Time time;    // when it was reached
  std::string after;  // what the stream did before the last record
};

struct EmulatedStream {
  struct Operation {
    // Exactly one of these three is set.
    std::function<void()> work;
    EmulatedEvent* reaches = nullptr;  // the operation records this event
    EmulatedEvent* awaits = nullptr;   // the operation waits for this event
    uint64_t place = 0;                // the number of the event's record
  };
  int device = 0;
  std::deque<Operation> operations;
  // For the names of waits.
  std::string last = "nothing";       // the operation that was queued last
  std::vector<std::string*> unnamed;  // waits after it
};

namespace syncgrads::emulation {
namespace {

// The entries of a stream's queue, as on real devices.
constexpr size_t kQueueEntries = 1024;
constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 256;
constexpr size_t kPage = 4096;
// NaNs, for what is read before it is written, or past the end of memory.
constexpr unsigned char kUnwritten = 0xff;
// Only the beginning of larger memory is filled, because every page that has been touched makes
// Open and Close slower. So the workspace of cuBLAS, which is never read, is not filled.
constexpr size_t kFilledWholeBytes = size_t{16} << 20;
constexpr size_t kFilledBytes = size_t{1} << 20;
// Blocks above this size are returned to the system when they are freed. Smaller ones stay mapped,
// because mapping them anew takes time.
constexpr size_t kKeptBytes = size_t{64} << 10;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

// The memory of all devices. It is accessible only between Open and Close, except while faults are
// planted or launches are counted: these take many steps, and the protection takes time. New memory
// has NaNs, except while launches are counted, which needs large memory and no values. The
// Machine's mutex protects it.
class Arena {
 public:
  explicit Arena(const Options& options)
      : bytes_(options.device_bytes),
        is_filled_(!options.counts),
        is_protected_(!options.counts && options.fault == Fault::kNone) {
    void* begin = mmap(nullptr, bytes_, is_protected_ ? PROT_NONE : PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) Die("no address space for the device's memory");
    begin_ = static_cast<unsigned char*>(begin);
  }
  ~Arena() { munmap(begin_, bytes_); }

  void Open() { Protect(PROT_READ | PROT_WRITE); }
  void Close() { Protect(PROT_NONE); }

  // Returns null if there is no room. Requires Open.
  void* Allocate(size_t bytes) {
    const size_t whole = (bytes + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
    size_t at = 0;
    for (const auto& [begin, block] : blocks_) {
      if (begin - at >= whole) break;
      at = begin + block.whole;
    }
    if (at + whole > bytes_) return nullptr;
    blocks_[at] = {bytes, whole};
    allocated_ += bytes;
    if (is_filled_) Fill(begin_ + at, bytes);
    return begin_ + at;
  }

  // Requires Open.
  void Free(void* memory) {
    const auto it = blocks_.find(static_cast<size_t>(static_cast<unsigned char*>(memory) - begin_));
    if (it == blocks_.end()) Die("what is freed was not allocated");
    for (size_t i = 0; i < kGuardBytes && is_filled_; ++i) {
      if (begin_[it->first + it->second.bytes + i] != kUnwritten)
        Die("memory was written past its end");
    }
    allocated_ -= it->second.bytes;
    if (it->second.whole > kKeptBytes) {
      const size_t begin = (it->first + kPage - 1) / kPage * kPage;
      const size_t end = (it->first + it->second.whole) / kPage * kPage;
      madvise(begin_ + begin, end - begin, MADV_DONTNEED);
    }
    blocks_.erase(it);
  }

  bool Has(const void* memory, size_t bytes) const {
    const auto* at = static_cast<const unsigned char*>(memory);
    if (at < begin_ || at >= begin_ + bytes_) return false;
    const size_t offset = static_cast<size_t>(at - begin_);
    auto it = blocks_.upper_bound(offset);
    if (it == blocks_.begin()) return false;
    --it;
    return offset + bytes <= it->first + it->second.bytes;
  }

  const void* begin() const { return begin_; }
  size_t allocated() const { return allocated_; }
  size_t bytes() const { return bytes_; }

 private:
  struct Block {
    size_t bytes;
    size_t whole;
  };
  // Fills `bytes` bytes and the guard behind them.
  static void Fill(unsigned char* memory, size_t bytes) {
    std::memset(memory, kUnwritten, bytes > kFilledWholeBytes ? kFilledBytes : bytes);
    std::memset(memory + bytes, kUnwritten, kGuardBytes);
  }
  void Protect(int protection) {
    if (is_protected_ && mprotect(begin_, bytes_, protection) != 0) Die("mprotect failed");
  }

  const size_t bytes_;
  const bool is_filled_;
  const bool is_protected_;
  unsigned char* begin_ = nullptr;
  std::map<size_t, Block> blocks_;
  size_t allocated_ = 0;
};

class Machine {
 public:
  static Machine& Get() {
    static auto& machine = *new Machine();
    return machine;
  }

  std::recursive_mutex mutex;
  Options options;
  Arena& arena() {
    if (arena_ == nullptr) arena_ = std::make_unique<Arena>(options);
    return *arena_;
  }
  // Requires Options::counts.
  LaunchCounter& counter() {
    if (counter_ == nullptr) {
      counter_ = std::make_unique<LaunchCounter>(arena().begin(), arena().bytes());
    }
    return *counter_;
  }
  struct Pinned {
    size_t bytes;
    bool read_only;
  };
  std::map<const void*, Pinned> pinned;
  size_t pinned_for_reading = 0;
  std::vector<EmulatedStream*> streams;  // in the order of their creation
  bool broken = false;
  bool hangs = false;
  bool breaks_cublas = false;
  cudaError_t last_error = cudaSuccess;
  // Objects that were not destroyed, because a device hung. The leak sanitizer finds them here.
  std::set<const void*> left_behind;
  // For each kind of call that will report exhausted memory: the calls before it.
  std::map<Call, uint64_t> exhausted;
  // The operations that can have Options::fault. Their addresses do not change.
  std::deque<std::string> fault_places;

  // As the function of that name.
  template <typename Name>
  bool HasFault(Fault fault, Name name) {
    if (options.fault != fault) return false;
    fault_places.push_back(name());
    return fault_places.size() - 1 == options.correct;
  }
  // Names the waits before an operation that is queued.
  void NameWaits(EmulatedStream& stream, std::string name) {
    for (std::string* wait : stream.unnamed) wait->insert(0, name);
    stream.unnamed.clear();
    stream.last = std::move(name);
  }

  // Called by every call that may wait for the device.
  void BlockIfHung() const {
    while (hangs) pause();
  }

  void Configure(const Options& wanted) {
    // The owner of a device that hangs leaves its streams behind.
    if (!streams.empty() && !hangs) Die("it is configured while a device is open");
    left_behind.insert(streams.begin(), streams.end());
    for (const auto& [host, memory] : pinned) left_behind.insert(host);
    streams.clear();
    pinned.clear();
    pinned_for_reading = 0;
    hangs = false;
    exhausted.clear();
    breaks_cublas = false;
    last_error = cudaSuccess;
    fault_places.clear();
    options = wanted;
    state_ = wanted.seed;
    broken = false;
    counter_.reset();
    arena_.reset();
  }

  bool IsPinned(const void* host, size_t bytes, bool writes) const {
    auto it = pinned.upper_bound(host);
    if (it == pinned.begin()) return false;
    --it;
    const auto& [first, memory] = *it;
    return !(writes && memory.read_only) &&
           static_cast<const char*>(host) + bytes <= static_cast<const char*>(first) + memory.bytes;
  }

  uint64_t Random(uint64_t below) {
    state_ += kGoldenGamma;
    return Mix64(state_) % below;
  }

  // Runs at most `steps` operations, until `done` is true. Returns false if all streams wait.
  template <typename Done>
  bool Work(uint64_t steps, Done done) {
    if (done() || hangs) return done();
    arena().Open();
    bool moves = true;
    for (uint64_t i = 0; i < steps && moves && !done(); ++i) moves = Step();
    arena().Close();
    return moves;
  }

  template <typename Done>
  void WorkUntil(Done done) {
    if (!Work(UINT64_MAX, done) && !done()) Die("streams wait for each other for ever");
  }

 private:
  bool CanGoOn(const EmulatedStream& stream) const {
    if (stream.operations.empty()) return false;
    const auto& next = stream.operations.front();
    return next.awaits == nullptr || next.awaits->reached >= next.place;
  }

  bool Step() {
    std::vector<EmulatedStream*> able;
    for (EmulatedStream* stream : streams) {
      if (CanGoOn(*stream)) able.push_back(stream);
    }
    if (able.empty()) return false;
    EmulatedStream* chosen = able.front();
    if (options.schedule == Schedule::kNewestStreamFirst) chosen = able.back();
    if (options.schedule == Schedule::kRandom) chosen = able[Random(able.size())];
    const EmulatedStream::Operation next = std::move(chosen->operations.front());
    chosen->operations.pop_front();
    if (next.work) next.work();
    if (next.reaches != nullptr) {
      next.reaches->reached = next.place;
      next.reaches->time = syncgrads::MonotonicNow();
    }
    return true;
  }

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<LaunchCounter> counter_;
  uint64_t state_ = 1;
};

thread_local int current_device = 0;

using Lock = std::lock_guard<std::recursive_mutex>;

// Returns an error if the device is broken, or if the stream is not the current device's.
cudaError_t Usable(cudaStream_t stream) {
  Machine& machine = Machine::Get();
  if (machine.broken) return cudaErrorIllegalAddress;
  if (stream == nullptr || stream->device != current_device) return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

// `name` returns the operation's name. Requires the Machine's mutex.
template <typename Name>
cudaError_t QueueWork(cudaStream_t stream, Name name, std::function<void()> work) {
  const cudaError_t error = Usable(stream);
  if (error != cudaSuccess) return error;
  Machine& machine = Machine::Get();
  if (stream->operations.size() >= kQueueEntries) machine.BlockIfHung();
  if (machine.options.fault == Fault::kDropWait) machine.NameWaits(*stream, name());
  stream->operations.push_back({std::move(work)});
  return cudaSuccess;
}

// Appends the bytes of `size`.
void Append(const dim3& size, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
}

}  // namespace

void Configure(const Options& options) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.Configure(options);
}

void Break() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.broken = true;
}

void Hang() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.hangs = true;
}

void Exhaust(Call call, uint64_t after) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.exhausted[call] = after;
}

bool IsExhausted(Call call) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  const auto found = machine.exhausted.find(call);
  if (found == machine.exhausted.end() || found->second-- > 0) return false;
  machine.exhausted.erase(found);
  return true;
}

void BreakCublas() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.breaks_cublas = true;
}

bool TakeBrokenCublas() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return std::exchange(machine.breaks_cublas, false);
}

void SetLastError(cudaError_t error) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.last_error = error;
}

size_t AllocatedBytes() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return machine.arena().allocated();
}

size_t PinnedForReading() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return machine.pinned_for_reading;
}

std::vector<Launch> TakeLaunches() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return machine.counter().Take();
}

bool Counts() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return machine.options.counts;
}

std::vector<std::string> FaultPlaces() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  std::vector<std::string> places(machine.fault_places.begin(), machine.fault_places.end());
  for (std::string& place : places) {
    if (place.front() == ' ') place.insert(0, "nothing");
  }
  return places;
}

bool HasFault(Fault fault, const std::function<std::string()>& name) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return machine.HasFault(fault, name);
}

cudaError_t Queue(cudaStream_t stream, Launch launch, std::function<void()> work) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  const auto name = [&launch] { return launch.name; };
  if (!machine.options.counts) return QueueWork(stream, name, std::move(work));
  return QueueWork(stream, name, [&machine, launch, work = std::move(work)] {
    machine.counter().Add(launch);
    work();
  });
}

cudaError_t QueueThreads(cudaStream_t stream, const dim3& grid, const dim3& block,
                         const char* kernel, std::string arguments,
                         std::function<void(const dim3& block, const dim3& thread)> visit) {
  // The limits of a real device.
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.y > 65535) {
    return cudaErrorInvalidValue;
  }
  if (IsExhausted(Call::kLaunch)) return cudaErrorMemoryAllocation;
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  const bool backwards = machine.options.backwards;
  const auto name = [kernel] { return NameOfKernel(kernel); };
  const bool shifts = machine.HasFault(Fault::kShiftBlock, name);
  const uint64_t lost = machine.HasFault(Fault::kLoseLastBlock, name) ? 1 : 0;
  std::function<void()> run = [=, visit = std::move(visit)] {
    const uint64_t blocks = uint64_t{grid.x} * grid.y - lost;
    for (uint64_t i = 0; i < blocks * threads; ++i) {
      const uint64_t number = backwards ? blocks * threads - 1 - i : i;
      const unsigned b = static_cast<unsigned>(number / threads);
      const unsigned t = static_cast<unsigned>(number % threads);
      dim3 place(b % grid.x, b / grid.x);
      if (shifts) ++(grid.y > 1 ? place.y : place.x);
      visit(place, dim3(t % block.x, t / block.x));
    }
  };
  if (!machine.options.counts) return QueueWork(stream, name, std::move(run));
  Append(grid, arguments);
  Append(block, arguments);
  return QueueWork(stream, name, [&machine, kernel, arguments, run = std::move(run)] {
    machine.counter().AddKernel(kernel, arguments, run);
  });
}

}  // namespace syncgrads::emulation

namespace {

// Returns the bytes that a copy leaves out: none, if it has no fault.
size_t ShiftOf(const std::string& name, size_t bytes) {
  const bool shifts = syncgrads::emulation::HasFault(syncgrads::emulation::Fault::kShiftCopy,
                                                     [&name] { return name; });
  return shifts ? std::min(bytes, sizeof(double)) : 0;
}

}  // namespace

using syncgrads::emulation::Call;
using syncgrads::emulation::current_device;
using syncgrads::emulation::Fault;
using syncgrads::emulation::IsExhausted;
using syncgrads::emulation::Lock;
using syncgrads::emulation::Machine;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error of the emulation";
  }
}

cudaError_t cudaGetLastError() {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return std::exchange(machine.last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  *count = machine.options.devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (device < 0 || device >= machine.options.devices) return cudaErrorInvalidDevice;
  *properties = {"an emulated device"};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (device < 0 || device >= machine.options.devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  *total = machine.arena().bytes();
  *free = *total - machine.arena().allocated();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  machine.BlockIfHung();
  if (IsExhausted(Call::kMalloc)) return cudaErrorMemoryAllocation;
  machine.arena().Open();
  *memory = machine.arena().Allocate(bytes);
  machine.arena().Close();
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Waits for all streams, as the real function does.
cudaError_t cudaFree(void* memory) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.BlockIfHung();
  for (EmulatedStream* stream : machine.streams) cudaStreamSynchronize(stream);
  machine.arena().Open();
  machine.arena().Free(memory);
  machine.arena().Close();
  return machine.broken ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  machine.BlockIfHung();
  if (IsExhausted(Call::kMallocHost)) return cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(*memory, syncgrads::emulation::kUnwritten, bytes);
  machine.pinned[*memory] = {bytes, /*read_only=*/false};
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.BlockIfHung();
  if (machine.pinned.erase(memory) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.BlockIfHung();
  if (machine.broken) return cudaErrorIllegalAddress;
  const Machine::Pinned pinned = {bytes, flags == cudaHostRegisterReadOnly};
  if (pinned.read_only) machine.pinned_for_reading += bytes;
  return machine.pinned.emplace(memory, pinned).second ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostUnregister(void* memory) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.BlockIfHung();
  return machine.pinned.erase(memory) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  const bool from_host = kind == cudaMemcpyHostToDevice;
  const bool to_host = kind == cudaMemcpyDeviceToHost;
  const bool right =
      (from_host ? machine.IsPinned(from, bytes, /*writes=*/false)
                 : machine.arena().Has(from, bytes)) &&
      (to_host ? machine.IsPinned(to, bytes, /*writes=*/true) : machine.arena().Has(to, bytes));
  if (!right) return cudaErrorInvalidValue;
  const syncgrads::emulation::Launch launch = {from_host ? "upload"
                                               : to_host ? "download"
                                                         : "copy",
                                               from_host ? 0 : bytes, to_host ? 0 : bytes};
  const size_t missing = ShiftOf(launch.name, bytes);
  return syncgrads::emulation::Queue(stream, launch, [=, &machine] {
    // The host's memory may have been freed since the copy was queued.
    if ((from_host && !machine.IsPinned(from, bytes, /*writes=*/false)) ||
        (to_host && !machine.IsPinned(to, bytes, /*writes=*/true)))
      syncgrads::emulation::Die("memory of the host was freed before it was copied");
    std::memcpy(to, static_cast<const char*>(from) + missing, bytes - missing);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  return syncgrads::emulation::Queue(stream, {"host function", 0, 0}, [=] { function(data); });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (!machine.arena().Has(memory, bytes)) return cudaErrorInvalidValue;
  const size_t missing = ShiftOf("memset", bytes);
  return syncgrads::emulation::Queue(stream, {"memset", 0, bytes}, [=] {
    std::memset(static_cast<char*>(memory) + missing, value, bytes - missing);
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  *stream = new EmulatedStream{current_device, {}};
  machine.streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.streams.erase(std::find(machine.streams.begin(), machine.streams.end(), stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.BlockIfHung();
  machine.WorkUntil([stream] { return stream->operations.empty(); });
  return machine.broken ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  const auto after = [event] { return " waits for " + event->after; };
  const bool is_missing = machine.HasFault(Fault::kDropWait, after);
  if (machine.options.fault == Fault::kDropWait) {
    stream->unnamed.push_back(&machine.fault_places.back());
  }
  if (!is_missing) stream->operations.push_back({{}, nullptr, event, event->recorded});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  *event = new EmulatedEvent();
  machine.left_behind.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  machine.left_behind.erase(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  stream->operations.push_back({{}, event, nullptr, ++event->recorded});
  event->after = stream->last;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  for (const cudaEvent_t event : {begin, end}) {
    if (event->recorded == 0) return cudaErrorInvalidValue;
    if (event->reached < event->recorded) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(absl::ToDoubleMilliseconds(end->time - begin->time));
  return cudaSuccess;
}

// Each query lets the device make some progress.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Machine& machine = Machine::Get();
  const Lock lock(machine.mutex);
  if (machine.broken) return cudaErrorIllegalAddress;
  const auto reached = [event] { return event->reached >= event->recorded; };
  const auto operations = machine.options.slow ? 1 : 1 + machine.Random(256);
  if (!machine.Work(operations, reached) && !reached() && !machine.hangs) {
    syncgrads::emulation::Die("streams wait for each other for ever");
  }
  return reached() ? cudaSuccess : cudaErrorNotReady;
}
