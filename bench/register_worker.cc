// One process of the benchmark of registration (register.py):
//
//   --role=train     two ranks make steps of a small group; each line "mark" on stdin is answered
//                    with the steps since the previous one: COUNT MEDIAN_MS LONGEST_MS
//   --role=register  joins a job of its own, registers a group, prints the seconds that Register
//                    took, and leaves
//   --role=touch     creates a file of --bytes, writes to each of its pages once, and prints the
//                    seconds

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/process_setup.h"

ABSL_FLAG(std::string, role, "", "train, register or touch");
ABSL_FLAG(std::string, coordinator, "", "host:port of server 0");
ABSL_FLAG(uint64_t, bytes, 1 << 16, "of the group, or of the file");
ABSL_FLAG(uint32_t, tensors, 1, "the group is cut into so many tensors");
ABSL_FLAG(absl::Duration, pause, absl::Milliseconds(5), "between two steps");
ABSL_FLAG(std::string, file, "", "what is touched; it is removed");
ABSL_FLAG(int, threads, 1, "that touch it");

namespace syncgrads::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(10);
constexpr uint32_t kRanks = 2;
constexpr size_t kPage = 4096;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::_Exit(1);
}

GroupSpec SpecOfFlags() {
  const uint64_t tensors = absl::GetFlag(FLAGS_tensors);
  const uint64_t elements = absl::GetFlag(FLAGS_bytes) / sizeof(float);
  GroupSpec spec{.name = "model"};
  for (uint64_t t = 0; t < tensors; ++t) {
    const uint64_t size = elements * (t + 1) / tensors - elements * t / tensors;
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {static_cast<int64_t>(size)}});
  }
  return spec;
}

// Collects the durations of steps. Thread-safe.
class Steps {
 public:
  void Add(absl::Duration step) {
    std::lock_guard lock(mutex_);
    steps_.push_back(step);
    ended_.notify_all();
  }
  // Blocks until the current step has ended, and returns and removes all durations.
  std::vector<absl::Duration> Take() {
    std::unique_lock lock(mutex_);
    const size_t before = steps_.size();
    ended_.wait(lock, [&] { return steps_.size() > before; });
    return std::exchange(steps_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<absl::Duration> steps_;  // guarded by mutex_
};

[[noreturn]] void MakeSteps(uint32_t rank, Steps& steps) {
  Client client({.coordinator = absl::GetFlag(FLAGS_coordinator),
                 .job = "steps",
                 .rank = rank,
                 .world_size = kRanks});
  Require(client.Join(kTimeout));
  const auto group = client.Register(SpecOfFlags(), kTimeout);
  Require(group.status());
  std::vector<float> values(absl::GetFlag(FLAGS_bytes) / sizeof(float), 1.0f);
  const size_t bytes = values.size() * sizeof(float);
  while (true) {
    const absl::Time begin = MonotonicNow();
    Require((*group)->Push(TensorId{0}, values.data(), bytes, values.data()));
    Require((*group)->WaitStep(kTimeout).status());
    if (rank == 0) steps.Add(MonotonicNow() - begin);
    // The benchmark measures how long steps wait for other work. Without a pause, the processor
    // would have no time for that work.
    absl::SleepFor(absl::GetFlag(FLAGS_pause));
  }
}

void Train() {
  Steps steps;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    std::thread([rank, &steps] { MakeSteps(rank, steps); }).detach();
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<absl::Duration> taken = steps.Take();
    std::sort(taken.begin(), taken.end());
    std::cout << taken.size() << " " << absl::ToDoubleMilliseconds(taken[taken.size() / 2]) << " "
              << absl::ToDoubleMilliseconds(taken.back()) << std::endl;
  }
  std::_Exit(0);
}

void Register() {
  Client client({.coordinator = absl::GetFlag(FLAGS_coordinator),
                 .job = "registers",
                 .rank = 0,
                 .world_size = 1});
  Require(client.Join(kTimeout));
  const GroupSpec spec = SpecOfFlags();
  const absl::Time begin = MonotonicNow();
  Require(client.Register(spec, kTimeout).status());
  std::cout << absl::ToDoubleSeconds(MonotonicNow() - begin) << std::endl;
  Require(client.Leave(kTimeout));
}

void Touch() {
  const std::string path = absl::GetFlag(FLAGS_file);
  const size_t bytes = absl::GetFlag(FLAGS_bytes);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) Require(absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno))));
  unlink(path.c_str());
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) Require(absl::InternalError("ftruncate"));
  const absl::Time begin = MonotonicNow();
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) Require(absl::InternalError("mmap"));
  madvise(mapped, bytes, MADV_HUGEPAGE);
  const size_t threads = static_cast<size_t>(absl::GetFlag(FLAGS_threads));
  const size_t pages = bytes / kPage;
  std::vector<std::thread> touching;
  for (size_t t = 0; t < threads; ++t) {
    touching.emplace_back([data = static_cast<volatile char*>(mapped), first = pages * t / threads,
                           last = pages * (t + 1) / threads] {
      for (size_t page = first; page < last; ++page) data[page * kPage] = 1;
    });
  }
  for (std::thread& thread : touching) thread.join();
  std::cout << absl::ToDoubleSeconds(MonotonicNow() - begin) << std::endl;
}

int Main() {
  const std::string role = absl::GetFlag(FLAGS_role);
  if (role == "train") {
    Train();
  } else if (role == "register") {
    Register();
  } else if (role == "touch") {
    Touch();
  } else {
    std::cerr << "there is no role \"" << role << "\"" << std::endl;
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace syncgrads::bench

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  absl::ParseCommandLine(argc, argv);
  return syncgrads::bench::Main();
}
