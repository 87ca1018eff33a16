#include "worker/launch/lines.h"

#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace syncgrads {
namespace {

// Returns what a terminal shows of a line: the text drawn last.
std::string Shown(absl::string_view line) {
  const std::string drawn = absl::StrReplaceAll(line, {{"\x1b[K", ""}, {"\x1b[2K", ""}});
  std::string last;
  for (absl::string_view part : absl::StrSplit(drawn, '\r')) {
    if (!part.empty()) last = std::string(part);
  }
  return last;
}

}  // namespace

std::vector<std::string> Lines::Add(absl::string_view bytes) {
  std::vector<std::string> lines;
  for (char byte : bytes) {
    if (byte != '\n') unfinished_ += byte;
    if (byte == '\n' || unfinished_.size() >= kLongestLine) {
      lines.push_back(Shown(unfinished_));
      unfinished_.clear();
    }
  }
  // Discards earlier drawings: a program may redraw its bar for as long as it runs.
  const size_t redrawn = unfinished_.rfind('\r');
  if (redrawn != std::string::npos && redrawn > 0 && redrawn + 1 < unfinished_.size()) {
    unfinished_.erase(0, redrawn);
  }
  return lines;
}

std::string Lines::Redrawn() const {
  return unfinished_.find('\r') == std::string::npos ? "" : Shown(unfinished_);
}

std::optional<std::string> Lines::Rest() {
  if (unfinished_.empty()) return std::nullopt;
  return Shown(std::exchange(unfinished_, ""));
}

}  // namespace syncgrads
