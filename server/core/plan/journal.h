// The server's log: events for people to read, one line each.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_
#define SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_

#include <string>

namespace syncgrads::server {

// Thread-safe. The methods must not block or call back: callers hold locks, for example
// Coordinator::mutex_.
class Journal {
 public:
  virtual ~Journal() = default;
  // Logs a detail for the diagnosis of a problem.
  virtual void Debug(const std::string& line) = 0;
  // Logs an event of general interest, such as a worker that joins.
  virtual void Note(const std::string& line) = 0;
  // Logs an event that may need attention.
  virtual void Warn(const std::string& line) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_
