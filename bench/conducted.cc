#include "bench/conducted.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace syncgrads::bench {
namespace {

constexpr size_t kTouched = 256;

// Returns values from 0 to 63 without a short period, so that a chunk in the wrong place is
// detected.
float Base(size_t i, uint64_t step) {
  const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u >> 21;
  return static_cast<float>((mixed + 7 * static_cast<uint32_t>(step)) & 63);
}

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The socket to the conductor. It reads and writes lines.
class Conductor {
 public:
  explicit Conductor(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
      std::fprintf(stderr, "too long for a socket: %s\n", path.c_str());
      std::exit(1);
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      std::perror(path.c_str());
      std::exit(1);
    }
  }
  ~Conductor() { close(fd_); }
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  void Say(const std::string& line) {
    const std::string bytes = line + "\n";
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // disconnected; the next Hear returns false
      sent += static_cast<size_t>(n);
    }
  }

  // Reads the next line. Returns false if the conductor has disconnected.
  bool Hear(std::string& line) {
    for (;;) {
      const size_t end = heard_.find('\n');
      if (end != std::string::npos) {
        line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return true;
      }
      char buffer[256];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return false;
      heard_.append(buffer, static_cast<size_t>(n));
    }
  }

 private:
  int fd_;
  std::string heard_;
};

}  // namespace

Values::Values(float* contribution, const float* result, size_t elements, uint32_t rank,
               uint32_t world_size)
    : contribution_(contribution),
      result_({absl::MakeConstSpan(result, elements)}),
      elements_(elements),
      stride_(std::max<size_t>(1, elements / kTouched)),
      rank_(rank),
      world_size_(world_size) {}

void Values::Fill() {
  for (size_t i = 0; i < elements_; ++i) {
    contribution_[i] = Base(i, 0) + static_cast<float>(rank_);
  }
}

void Values::Touch(uint64_t step) {
  for (size_t i = 0; i < elements_; i += stride_) {
    contribution_[i] = Base(i, step) + static_cast<float>(rank_);
  }
}

float Values::Result(size_t i) const {
  for (const absl::Span<const float> piece : result_) {
    if (i < piece.size()) return piece[i];
    i -= piece.size();
  }
  return std::nanf("");
}

bool Values::IsRight(size_t i, uint64_t step) const {
  const float expected = Base(i, step) + static_cast<float>(world_size_ - 1) / 2;
  return std::abs(Result(i) - expected) <= tolerance_;
}

std::string Values::Describe(size_t i, uint64_t step) const {
  return "step " + std::to_string(step) + ": element " + std::to_string(i) + " of " +
         std::to_string(elements_) + " is " + std::to_string(Result(i)) + ", the mean is " +
         std::to_string(Base(i, step) + static_cast<float>(world_size_ - 1) / 2);
}

std::string Values::CheckTouched(uint64_t step) const {
  for (size_t i = 0; i < elements_; i += stride_) {
    if (!IsRight(i, step)) return Describe(i, step);
  }
  return "";
}

std::string Values::CheckAll(uint64_t last_step) const {
  if (std::string wrong = CheckTouched(last_step); !wrong.empty()) return wrong;
  // Elements that were not touched still have the contribution that Fill wrote. If the result
  // replaces the contribution, they have the mean since the first step after Fill, and the mean of
  // equal values is that value.
  for (size_t i = 0; i < elements_; i += stride_) {
    for (size_t k = i + 1; k < std::min(elements_, i + stride_); ++k) {
      if (!IsRight(k, 0)) return Describe(k, 0);
    }
  }
  return "";
}

int FollowConductor(const std::string& path, uint32_t rank, Values& values,
                    const std::function<void()>& step) {
  Conductor conductor(path);
  conductor.Say("ready " + std::to_string(rank) + " " + std::to_string(getpid()));
  uint64_t steps_done = 0;
  std::string command;
  while (conductor.Hear(command)) {
    if (command == "fill") {
      values.Fill();
      conductor.Say("ok");
      continue;
    }
    if (command == "check") {
      const std::string wrong = values.CheckAll(steps_done);
      conductor.Say(wrong.empty() ? "ok" : "wrong rank " + std::to_string(rank) + ", " + wrong);
      continue;
    }
    if (command.rfind("run ", 0) != 0) {
      conductor.Say("wrong command " + command);
      return 1;
    }
    std::vector<int64_t> moments(2 * std::strtoull(command.c_str() + 4, nullptr, 10));
    std::string wrong;
    for (size_t i = 0; i < moments.size(); i += 2) {
      values.Touch(++steps_done);
      moments[i] = Now();
      step();
      moments[i + 1] = Now();
      if (wrong.empty()) wrong = values.CheckTouched(steps_done);
    }
    if (!wrong.empty()) {
      conductor.Say("wrong rank " + std::to_string(rank) + ", " + wrong);
      continue;
    }
    std::string report = "done";
    for (const int64_t moment : moments) report += " " + std::to_string(moment);
    conductor.Say(report);
  }
  return 0;
}

}  // namespace syncgrads::bench
