// Where the output of a group of programs comes together.

#ifndef SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_
#define SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads {

// Writes lines with a prefix that says whose they are. On a terminal, the last
// line can be a status that stays below everything else.
//
// Not thread-safe.
class Console {
 public:
  struct Sink {
    std::function<void(absl::string_view)> write;
    // Characters in a line of the terminal; 0: this is no terminal.
    size_t columns = 0;
  };

  Console(Sink out, Sink err);
  // Ends the line that the status is on.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  enum class Stream { kOut, kErr };
  void PrintLine(Stream stream, absl::string_view prefix, absl::string_view line);

  // Shows `text` in place of the status so far, cut to the terminal's width; empty:
  // none. Nothing happens if the output is no terminal.
  void SetStatus(absl::string_view prefix, absl::string_view text);

  // Of the terminal that the output is; 0 if it is none.
  size_t columns() const { return out_.columns; }

 private:
  Sink out_;
  Sink err_;
  std::string status_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_LAUNCH_CONSOLE_H_
