// An honest job that runs beside a misbehaving client. Until SIGTERM, two ranks average known
// values in every step and compare each result bit for bit. Prints "step N" every 100 steps, each
// step that takes more than 20 ms, and at the end the durations of the first 500 steps and of the
// later ones.
//
// Exit codes: 0 if every result was correct; 1 if a result was wrong or a call failed, and the
// output has the error.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/clock.h"
#include "common/process_setup.h"
#include "common/status_macros.h"

ABSL_FLAG(std::string, server, "", "host:port of the coordinator");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(2), "of each call");

namespace syncgrads::fault {
namespace {

constexpr uint32_t kRanks = 2;
constexpr size_t kElements = 4096;
// Leaves processor time for other processes.
constexpr absl::Duration kPause = absl::Milliseconds(2);
// The duration of a step that is printed at once.
constexpr absl::Duration kSlow = absl::Milliseconds(20);

// The steps before the other client is started.
constexpr size_t kQuietSteps = 500;

float ValueOf(uint32_t rank, uint64_t step, size_t element) {
  return static_cast<float>((rank + 1) * (step % 1000) + element);
}

class HonestJob {
 public:
  // Ends the job after a step that both ranks make.
  void Stop() { stops_ = true; }

  absl::Status Run(uint32_t rank) {
    const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
    // Declared before the client, which may still use them when a call has failed.
    std::vector<float> values(kElements), results(kElements);
    Client client({.coordinator = absl::GetFlag(FLAGS_server),
                   .job = "honest",
                   .token = "honest",
                   .rank = rank,
                   .world_size = kRanks});
    SYNCGRADS_RETURN_IF_ERROR(client.Join(timeout));
    const GroupSpec spec{.name = "model",
                         .tensors = {{"values", DType::kF32, {kElements}}},
                         .chunk_bytes = kElements};
    SYNCGRADS_ASSIGN_OR_RETURN(Group* const group, client.Register(spec, timeout));
    for (uint64_t step = 1; step <= last_; ++step) {
      // Rank 1 cannot finish this step before rank 0 has pushed, so it has not begun a later one.
      if (rank == 0 && stops_) last_ = step;
      for (size_t i = 0; i < kElements; ++i) values[i] = ValueOf(rank, step, i);
      const absl::Time begin = MonotonicNow();
      SYNCGRADS_RETURN_IF_ERROR(
          group->Push(TensorId{0}, values.data(), kElements * sizeof(float), results.data()));
      SYNCGRADS_RETURN_IF_ERROR(group->WaitStep(timeout).status());
      if (rank == 0) {
        durations_.push_back(MonotonicNow() - begin);
        if (durations_.back() > kSlow) {
          std::cout << absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone())
                    << ": step " << step << " took " << durations_.back() << std::endl;
        }
      }
      for (size_t i = 0; i < kElements; ++i) {
        values[i] = (ValueOf(0, step, i) + ValueOf(1, step, i)) / 2;
      }
      if (std::memcmp(values.data(), results.data(), kElements * sizeof(float)) != 0) {
        return absl::DataLossError(absl::StrCat("step ", step, " has another result"));
      }
      if (rank == 0 && step % 100 == 0) std::cout << "step " << step << std::endl;
      absl::SleepFor(kPause);
    }
    return client.Leave(timeout);
  }

  // Returns the durations of rank 0's steps.
  const std::vector<absl::Duration>& durations() const { return durations_; }

 private:
  std::atomic<bool> stops_{false};
  std::atomic<uint64_t> last_{std::numeric_limits<uint64_t>::max()};
  std::vector<absl::Duration> durations_;
};

// Describes steps: "median 210us, 99 of 100 within 1.2ms, longest 3ms of 1530".
std::string Describe(absl::Span<const absl::Duration> steps) {
  std::vector<absl::Duration> sorted(steps.begin(), steps.end());
  if (sorted.empty()) return "none";
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](size_t percent) {
    return absl::FormatDuration(absl::Trunc(
        sorted[std::min(sorted.size() * percent / 100, sorted.size() - 1)], absl::Microseconds(1)));
  };
  return absl::StrCat("median ", at(50), ", 99 of 100 within ", at(99), ", longest ", at(100),
                      " of ", sorted.size());
}

int Main() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  HonestJob job;
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([rank, &job] {
      const absl::Status status = job.Run(rank);
      if (status.ok()) return;
      std::cout << "honest: rank " << rank << ": " << status << std::endl;
      std::_Exit(1);
    });
  }
  int signal = 0;
  sigwait(&signals, &signal);
  job.Stop();
  for (std::thread& rank : ranks) rank.join();
  const absl::Span<const absl::Duration> steps = job.durations();
  const size_t quiet = std::min(kQuietSteps, steps.size());
  std::cout << "honest: the first steps: " << Describe(steps.first(quiet))
            << "\nhonest: later steps: " << Describe(steps.subspan(quiet)) << std::endl;
  return 0;
}

}  // namespace
}  // namespace syncgrads::fault

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  absl::ParseCommandLine(argc, argv);
  return syncgrads::fault::Main();
}
