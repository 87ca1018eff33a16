// Prints the output of several programs to one terminal or file.

#ifndef SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_
#define SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Prints each line with a prefix that names its program. On a terminal, the last line can
// be a status that stays below all other output. Not thread-safe.
class Console {
 public:
  struct Sink {
    std::function<void(absl::string_view)> write;
    // The terminal's width in characters; 0 if this is not a terminal.
    size_t columns = 0;
  };

  Console(Sink out, Sink err);
  // Ends the line that shows the status.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  enum class Stream { kOut, kErr };
  void PrintLine(Stream stream, absl::string_view prefix, absl::string_view line);

  // Replaces the status with `prefix` and `text`, cut to the terminal's width. An empty
  // `text` removes it. Does nothing if the output is not a terminal.
  void SetStatus(absl::string_view prefix, absl::string_view text);

  // The width of the terminal that `out` writes to; 0 if it is not a terminal.
  size_t columns() const { return out_.columns; }

 private:
  Sink out_;
  Sink err_;
  std::string status_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_
