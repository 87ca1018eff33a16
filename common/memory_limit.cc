#include "common/memory_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Number of bytes read from a file. What is looked for is in the first lines.
constexpr size_t kMostRead = 4096;

bool IsWant(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

// Returns the beginning of the file; an empty string if this process cannot read the file.
absl::StatusOr<std::string> ReadStart(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text(kMostRead, '\0');
  const ssize_t length = file < 0 ? -1 : read(file, text.data(), text.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (length < 0 && IsWant(error)) {
    return absl::UnavailableError(
        absl::ErrnoToStatus(error, absl::StrCat("cannot read ", path)).message());
  }
  text.resize(std::max<ssize_t>(length, 0));
  return text;
}

// Returns the number that the file begins with; nullopt if it begins with none, for example with
// "max".
absl::StatusOr<std::optional<uint64_t>> ReadNumber(const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, ReadStart(path));
  std::istringstream words(text);
  std::string word;
  uint64_t number;
  if (!(words >> word) || !absl::SimpleAtoi(word, &number)) return std::optional<uint64_t>();
  return std::optional<uint64_t>(number);
}

// Returns the number behind a name, in a file of lines "NAME NUMBER..."; nullopt if there is none.
absl::StatusOr<std::optional<uint64_t>> ReadNamed(const std::string& path, absl::string_view name) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, ReadStart(path));
  std::istringstream file(text);
  std::string word, rest;
  uint64_t number;
  while (file >> word >> number) {
    if (word == name) return std::optional<uint64_t>(number);
    std::getline(file, rest);
  }
  return std::optional<uint64_t>();
}

// A mounted tree of control groups: version 2, or the memory controller of version 1.
struct GroupTree {
  absl::string_view mount;
  // The controller in /proc/self/cgroup; empty for version 2.
  absl::string_view controller;
  absl::string_view limit;
  absl::string_view used;
  // The name in memory.stat of those pages of files that the kernel frees first. They are part of
  // the used memory.
  absl::string_view cache;
};

constexpr GroupTree kTrees[] = {
    {"/sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"},
    {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"},
};

// Returns the path of this process's group in the tree; empty for the root, and if it is not known.
// `groups` is the text of /proc/self/cgroup: lines "NUMBER:CONTROLLER,CONTROLLER...:PATH".
std::string GroupOf(const GroupTree& tree, const std::string& groups) {
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (!absl::c_linear_search(controllers, tree.controller)) continue;
    // A group outside of the mounted tree is shown as a path that begins with "/..".
    return fields[2] == "/" || absl::StartsWith(fields[2], "/..") ? "" : fields[2];
  }
  return "";
}

// Returns what the limit of one group leaves. `folder` is the group's folder.
absl::StatusOr<uint64_t> Left(const GroupTree& tree, const std::string& folder) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint64_t> limit,
                             ReadNumber(absl::StrCat(folder, "/", tree.limit)));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint64_t> used,
                             ReadNumber(absl::StrCat(folder, "/", tree.used)));
  if (!limit.has_value() || !used.has_value()) return kNoLimit;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint64_t> cache,
                             ReadNamed(absl::StrCat(folder, "/memory.stat"), tree.cache));
  const uint64_t needed = *used - std::min(*used, cache.value_or(0));
  return *limit > needed ? *limit - needed : 0;
}

// Returns the limit of one group.
absl::StatusOr<uint64_t> Limit(const GroupTree& tree, const std::string& folder) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint64_t> limit,
                             ReadNumber(absl::StrCat(folder, "/", tree.limit)));
  return limit.value_or(kNoLimit);
}

// Returns the minimum of the number `name` of /proc/meminfo and of `of_group` for this process's
// control group and all groups above it.
absl::StatusOr<uint64_t> LeastOf(
    const std::string& root, absl::string_view name,
    absl::FunctionRef<absl::StatusOr<uint64_t>(const GroupTree&, const std::string& folder)>
        of_group) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint64_t> machine,
                             ReadNamed(absl::StrCat(root, "/proc/meminfo"), name));
  uint64_t least = machine.has_value() ? *machine * 1024 : kNoLimit;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string groups,
                             ReadStart(absl::StrCat(root, "/proc/self/cgroup")));
  for (const GroupTree& tree : kTrees) {
    std::string group = GroupOf(tree, groups);
    while (true) {
      SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t one,
                                 of_group(tree, absl::StrCat(root, tree.mount, group)));
      least = std::min(least, one);
      if (group.empty()) break;
      group.resize(group.rfind('/'));
    }
  }
  return least;
}

}  // namespace

absl::StatusOr<uint64_t> AvailableMemory(const std::string& root) {
  return LeastOf(root, "MemAvailable:", Left);
}

absl::StatusOr<uint64_t> TotalMemory(const std::string& root) {
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t total, LeastOf(root, "MemTotal:", Limit));
  return total == kNoLimit ? 0 : total;
}

}  // namespace syncgrads
