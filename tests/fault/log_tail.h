// What has been added to a worker's event log since it was last looked at.

#ifndef SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_
#define SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_

#include <cstdint>
#include <string>

namespace syncgrads::fault {

// Not thread-safe.
class LogTail {
 public:
  explicit LogTail(std::string path) : path_(std::move(path)) {}

  // Reads on. True if there are new lines.
  bool Read();
  // The newest step in the log; 0 before the first.
  uint64_t step() const { return step_; }

 private:
  const std::string path_;
  uint64_t offset_ = 0;  // of what has not been read
  uint64_t step_ = 0;
  std::string rest_;  // of a line that is not complete
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_LOG_TAIL_H_
