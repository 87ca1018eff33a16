#include "tests/fault/log_tail.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace syncgrads::fault {
namespace {

constexpr char kStep[] = "\"event\":\"step\"";
const std::string kNumber = "\"step\":";

}  // namespace

bool LogTail::Read() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return false;
  file.seekg(static_cast<std::streamoff>(offset_));
  std::ostringstream added;
  added << file.rdbuf();
  offset_ += added.str().size();
  rest_ += added.str();
  bool any = false;
  for (size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
    const std::string line = rest_.substr(0, end);
    rest_.erase(0, end + 1);
    any = true;
    if (!absl::StrContains(line, kStep)) continue;
    const size_t at = line.find(kNumber) + kNumber.size();
    uint64_t step = 0;
    if (absl::SimpleAtoi(line.substr(at, line.find(',', at) - at), &step)) {
      step_ = std::max(step_, step);
    }
  }
  return any;
}

}  // namespace syncgrads::fault
