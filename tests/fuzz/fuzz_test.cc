// Runs a fuzz target on its seeds, and on copies of them that are damaged at random.

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

constexpr uint64_t kSeed = 20241115;
// The number of damaged inputs is the greater of these two.
constexpr size_t kLeastDamaged = 1500;
constexpr size_t kDamagedPerSeed = 4;
constexpr size_t kNoise = 1000;

// The input that is running, for the report of a failure.
const std::string* running = nullptr;

void ReportInput(int signal) {
  std::fprintf(stderr, "signal %d; the input in hexadecimal:\n%s\n", signal,
               absl::BytesToHexString(*running).c_str());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void RunOne(const std::string& input) {
  // An exact copy on the heap, so that a sanitizer detects a read past its end.
  const std::vector<char> copy(input.begin(), input.end());
  running = &input;
  Fuzz(absl::string_view(copy.data(), copy.size()));
  running = nullptr;
}

class FuzzTest : public ::testing::Test {
 protected:
  FuzzTest() {
    std::signal(SIGABRT, ReportInput);
    std::signal(SIGSEGV, ReportInput);
    std::signal(SIGFPE, ReportInput);
#ifndef __SANITIZE_ADDRESS__
    // An allocation that is much larger than the input fails. The address sanitizer itself maps
    // terabytes.
    const rlimit limit = {1 << 30, 1 << 30};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
#endif
  }

  uint64_t Below(uint64_t end) { return random_() % end; }

  // Returns a number that parsers tend to get wrong.
  uint64_t Edge() {
    const uint64_t edges[] = {0,          1,          0x7f,       0xff,
                              0xffff,     0x7fffffff, 0xffffffff, uint64_t{1} << 40,
                              ~0ull >> 1, ~0ull,      ~0ull - 7,  uint64_t{1} << 62};
    return edges[Below(std::size(edges))];
  }

  void Damage(std::string& input, const std::vector<std::string>& seeds) {
    const size_t at = Below(input.size() + 1);
    const size_t length = std::min<size_t>(input.size() - at, Below(24));
    switch (Below(9)) {
      case 0:
        input.resize(at);
        break;
      case 1:
        input.insert(at, 1 + Below(4), static_cast<char>(random_()));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(Below(input.size() + 1), Below(64)));
        break;
      case 4: {
        const std::string& other = seeds[Below(seeds.size())];
        input.replace(at, length, other.substr(Below(other.size() + 1), Below(64)));
        break;
      }
      case 5: {
        const std::string number = Encoded(Edge(), size_t{1} << Below(4));
        input.replace(at, std::min(number.size(), input.size() - at), number);
        break;
      }
      case 6:
        input.replace(at, std::min<size_t>(length, 4), std::to_string(Edge()));
        break;
      default:
        if (at < input.size()) input[at] = static_cast<char>(random_());
    }
  }

  std::mt19937_64 random_{kSeed};
};

TEST_F(FuzzTest, Seeds) {
  const std::vector<std::string> seeds = Seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) RunOne(seed);
}

TEST_F(FuzzTest, DamagedSeeds) {
  const std::vector<std::string> seeds = Seeds();
  ASSERT_FALSE(seeds.empty());
  const size_t count = std::max(kLeastDamaged, kDamagedPerSeed * seeds.size());
  for (size_t i = 0; i < count; ++i) {
    std::string input = seeds[i % seeds.size()];
    for (uint64_t times = 1 + Below(4); times > 0; --times) Damage(input, seeds);
    RunOne(input);
  }
}

TEST_F(FuzzTest, Noise) {
  for (size_t i = 0; i < kNoise; ++i) {
    std::string input(Below(32), '\0');
    for (char& byte : input) byte = static_cast<char>(random_());
    RunOne(input);
  }
}

}  // namespace
}  // namespace syncgrads::fuzz
