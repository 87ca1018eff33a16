// Events that people want to read, one line each.

#ifndef SYNCGRADS_SERVER_CORE_JOURNAL_H_
#define SYNCGRADS_SERVER_CORE_JOURNAL_H_

#include <string>

namespace syncgrads::server {

// Thread-safe. Calls nothing back.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual void Note(const std::string& line) = 0;
  virtual void Warn(const std::string& line) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOURNAL_H_
