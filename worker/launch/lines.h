// Splits the output of one program into lines.

#ifndef SYNCGRADS_WORKER_LAUNCH_LINES_H_
#define SYNCGRADS_WORKER_LAUNCH_LINES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Receives output as it is read and returns complete lines. If the program redraws a line
// with carriage returns, as a progress bar does, the line is the text drawn last. Not
// thread-safe.
class Lines {
 public:
  // A longer line is split here, so that output without line ends needs bounded memory.
  static constexpr size_t kLongestLine = 64 << 10;

  // Returns the lines that `bytes` completes, without their line ends.
  std::vector<std::string> Add(absl::string_view bytes);

  // Returns the current text of the line that is being redrawn; empty if none is.
  std::string Redrawn() const;

  // Returns the last, incomplete line after the end of the output; nullopt if there is
  // none.
  std::optional<std::string> Rest();

 private:
  std::string unfinished_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_LINES_H_
