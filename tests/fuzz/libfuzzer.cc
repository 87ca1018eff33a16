// Runs a fuzz target under libFuzzer. `./dev fuzz` builds it with clang.
//
// If the first argument that is no option is a directory, it is the corpus: the target's seeds are
// written to it before the run.

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// Some targets have thousands of seeds, drawn at random.
constexpr size_t kMaxSeeds = 200;
// The processor time for one input. (libFuzzer's own limit also counts the time in which other
// processes run.)
constexpr double kMostSeconds = 5;

double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void WriteSeeds(const std::string& directory) {
  const std::vector<std::string> seeds = syncgrads::fuzz::Seeds();
  for (size_t i = 0; i < seeds.size() && i < kMaxSeeds; ++i) {
    std::ofstream(absl::StrCat(directory, "/seed-", i), std::ios::binary) << seeds[i];
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    if (argument.rfind("-", 0) == 0) continue;
    if (std::filesystem::is_directory(argument)) WriteSeeds(argument);
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double begin = ProcessorSeconds();
  syncgrads::fuzz::Fuzz(absl::string_view(reinterpret_cast<const char*>(data), size));
  const double took = ProcessorSeconds() - begin;
  syncgrads::fuzz::Require(took <= kMostSeconds, absl::StrCat("an input takes ", took, " s"));
  return 0;
}
