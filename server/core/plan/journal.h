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
  // Logs a detail that is of use only to somebody who looks for the cause of a problem.
  virtual void Debug(const std::string& line) = 0;
  // Logs an ordinary event that everybody who runs a server wants to see.
  virtual void Note(const std::string& line) = 0;
  // Logs an event that may need attention.
  virtual void Warn(const std::string& line) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_
