#include "common/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The number that the file begins with; none for "max".
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t number;
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;
  return number;
}

uint64_t OfTheMachine(const std::string& root) {
  std::ifstream file(absl::StrCat(root, "/proc/meminfo"));
  std::string name;
  uint64_t kibibytes;
  std::string unit;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return kNoLimit;
}

uint64_t Left(const std::string& limit_path, const std::string& used_path) {
  const std::optional<uint64_t> limit = ReadNumber(limit_path);
  const std::optional<uint64_t> used = ReadNumber(used_path);
  if (!limit.has_value() || !used.has_value()) return kNoLimit;
  return *limit > *used ? *limit - *used : 0;
}

}  // namespace

uint64_t AvailableMemory(const std::string& root) {
  // A container sees its own group at the root of the tree (version 2, then 1).
  const std::string groups = absl::StrCat(root, "/sys/fs/cgroup/");
  return std::min(
      {OfTheMachine(root), Left(groups + "memory.max", groups + "memory.current"),
       Left(groups + "memory/memory.limit_in_bytes", groups + "memory/memory.usage_in_bytes")});
}

}  // namespace syncgrads
