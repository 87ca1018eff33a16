// One program's output, cut into lines.

#ifndef SYNCGRADS_WORKER_LAUNCH_LINES_H_
#define SYNCGRADS_WORKER_LAUNCH_LINES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Takes output as it comes and gives back whole lines. A line that the program
// draws over and over with carriage returns, as a progress bar does, counts as
// what was drawn last.
//
// Not thread-safe.
class Lines {
 public:
  // Longer lines are cut, so that a program without line ends costs no more.
  static constexpr size_t kLongestLine = 64 << 10;

  // The lines that `bytes` completes, without their ends.
  std::vector<std::string> Add(absl::string_view bytes);

  // What stands on the line that is being redrawn; empty for an ordinary one.
  std::string Redrawn() const;

  // The line that was not completed, when the output has ended.
  std::optional<std::string> Rest();

 private:
  std::string unfinished_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_LINES_H_
