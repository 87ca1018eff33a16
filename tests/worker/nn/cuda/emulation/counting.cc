#include "tests/worker/nn/cuda/emulation/counting.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <utility>

namespace syncgrads::emulation {
namespace {

// The footprints of the kernel that this thread runs; null if it runs none.
thread_local Footprint* loaded = nullptr;
thread_local Footprint* stored = nullptr;

}  // namespace

std::string NameOfKernel(const char* type) {
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(type, nullptr, nullptr, nullptr), &std::free);
  // A lambda has the name and the parameters of the function that it is in.
  static const std::regex lambda(R"(\(EmulatedStream\*.*?\)::\{lambda\(.*?\)#\d+\})");
  const std::string text = std::regex_replace(readable ? readable.get() : type, lambda, "");
  static const std::set<std::string> left_out = {
      "anonymous", "cuda",      "cudaError_t", "double",    "float", "int",
      "long",      "namespace", "syncgrads",   "EachPlace", "void"};
  static const std::regex word(R"([A-Za-z_]\w*)");
  std::string name;
  for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) {
    if (left_out.count(it->str()) > 0) continue;
    if (!name.empty()) name += ' ';
    name += it->str();
  }
  return name;
}

Footprint::Footprint(const void* begin, size_t bytes)
    : begin_(reinterpret_cast<uintptr_t>(begin)), bytes_(bytes) {
  void* const words = mmap(nullptr, bytes_ / 8 + 8, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) {
    std::fprintf(stderr, "emulated CUDA: no address space to count in\n");
    std::abort();
  }
  words_ = static_cast<uint64_t*>(words);
}

Footprint::~Footprint() { munmap(words_, bytes_ / 8 + 8); }

void Footprint::Add(const void* address, size_t bytes) {
  const size_t first = reinterpret_cast<uintptr_t>(address) - begin_;
  if (first >= bytes_) return;
  for (size_t at = first; at < first + bytes;) {
    const size_t bit = at % 64;
    const size_t count = std::min(first + bytes - at, 64 - bit);
    uint64_t& word = words_[at / 64];
    const uint64_t added = (~uint64_t{0} >> (64 - count) << bit) & ~word;
    count_ += static_cast<uint64_t>(std::popcount(added));
    word |= added;
    at += count;
  }
}

uint64_t Footprint::Take() {
  if (count_ > 0) madvise(words_, bytes_ / 8 + 8, MADV_DONTNEED);  // the words become zeros
  return std::exchange(count_, 0);
}

LaunchCounter::LaunchCounter(const void* memory, size_t bytes)
    : memory_(reinterpret_cast<uintptr_t>(memory)),
      bytes_(bytes),
      read_(memory, bytes),
      written_(memory, bytes) {}

std::string LaunchCounter::WithoutAddresses(std::string arguments) const {
  std::map<uint64_t, uint64_t> numbers;
  for (size_t at = 0; at + sizeof(uint64_t) <= arguments.size(); at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, &arguments[at], sizeof(word));
    if (word - memory_ >= bytes_) continue;
    word = numbers.emplace(word, numbers.size()).first->second;
    std::memcpy(&arguments[at], &word, sizeof(word));
  }
  return arguments;
}

void LaunchCounter::AddKernel(const char* type, const std::string& arguments,
                              const std::function<void()>& run) {
  const auto [known, is_new] = known_.try_emplace(type + WithoutAddresses(arguments));
  Traffic& traffic = known->second;
  if (is_new) {
    loaded = &read_;
    stored = &written_;
    run();
    loaded = stored = nullptr;
    traffic = {read_.Take(), written_.Take()};
  }
  Add({NameOfKernel(type), traffic.read, traffic.written});
}

std::vector<Launch> LaunchCounter::Take() { return std::exchange(launches_, {}); }

void CountLoad(const void* address, size_t bytes) {
  if (loaded != nullptr) loaded->Add(address, bytes);
}

void CountStore(const void* address, size_t bytes) {
  if (stored != nullptr) stored->Add(address, bytes);
}

}  // namespace syncgrads::emulation
