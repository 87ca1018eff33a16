// The server's log. Its lines are queued and written by its own thread, so that no caller blocks
// if the reader of the file (for example, of a pipe) does not read.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_QUEUED_JOURNAL_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_QUEUED_JOURNAL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log_level.h"
#include "server/core/plan/journal.h"

namespace syncgrads::server {

struct QueuedJournalOptions {
  // The name that each line has after the timestamp, such as "ps-server 0".
  std::string name;
  // The lowest level of the lines that are written.
  LogLevel level = LogLevel::kInfo;
  // The limits of the queue. Lines beyond them are dropped, and the number of dropped lines is
  // written in their place.
  size_t max_lines = 10000;
  size_t max_bytes = 4 << 20;
  // A longer line is truncated, and its length is appended.
  size_t max_line_bytes = 8 << 10;
  // How long Flush and the destructor wait for the queued lines to be written.
  absl::Duration flush_timeout = absl::Seconds(1);
  // Returns the timestamp of a line. Called by Debug, Note and Warn.
  std::function<absl::Time()> now = absl::Now;
};

// A line has the local time at which Debug, Note or Warn was called, and the letter D, I or W:
//
//   2024-05-17T09:30:12.345 W ps-server 0: job "iris": worker "w1" on h1 is dropped: ...
//
// Control characters and bytes that are not UTF-8 are escaped as \n, \t or \x1b. A worker's name
// can therefore neither start a new line nor control a terminal.
//
// Thread-safe. Debug, Note and Warn never block on the file.
class QueuedJournal : public Journal {
 public:
  // Writes to a duplicate of the descriptor `file`.
  QueuedJournal(int file, QueuedJournalOptions options);
  // Waits at most flush_timeout for the queued lines to be written. If the writer thread is still
  // blocked on the file then, it is detached.
  ~QueuedJournal() override;

  // Waits at most flush_timeout for the queued lines to be written. Returns whether they are.
  bool Flush();

  void Debug(const std::string& line) override;
  void Note(const std::string& line) override;
  void Warn(const std::string& line) override;

 private:
  // Shared with the writer thread, which may outlive this object.
  class Queue;

  const LogLevel level_;
  const absl::Duration flush_timeout_;
  const std::shared_ptr<Queue> queue_;
  std::thread writer_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_QUEUED_JOURNAL_H_
