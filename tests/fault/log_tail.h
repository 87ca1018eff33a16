// Reads the lines that have been added to a worker's event log.

#ifndef SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_
#define SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_

#include <cstdint>
#include <string>

namespace syncgrads::fault {

// Not thread-safe.
class LogTail {
 public:
  explicit LogTail(std::string path) : path_(std::move(path)) {}

  // Reads the new part of the file. Returns true if there are new lines.
  bool Read();
  // Returns the newest step in the log; 0 if there is none.
  uint64_t step() const { return step_; }

 private:
  const std::string path_;
  uint64_t offset_ = 0;  // where the unread part of the file begins
  uint64_t step_ = 0;
  std::string rest_;  // an incomplete last line
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_
