// An output stream for one of several threads that write to the same stream.

#ifndef SYNCGRADS_WORKER_RUN_PREFIXED_LINES_H_
#define SYNCGRADS_WORKER_RUN_PREFIXED_LINES_H_

#include <ostream>
#include <streambuf>
#include <string>
#include <utility>

#include "common/mutex.h"

namespace syncgrads {

// Writes each line to `out` as a whole, with a prefix. On destruction, an incomplete last
// line is written too, with a line end.
//
// One thread uses each object. Several objects may share `out` and the mutex that
// protects it.
class PrefixedLines : public std::ostream {
 public:
  // `out` and `mutex` outlive this object.
  PrefixedLines(std::string prefix, std::ostream& out, Mutex& mutex)
      : std::ostream(&buffer_), buffer_(std::move(prefix), out, mutex) {}

 private:
  class Buffer : public std::streambuf {
   public:
    Buffer(std::string prefix, std::ostream& out, Mutex& mutex)
        : prefix_(std::move(prefix)), out_(out), mutex_(mutex) {}
    ~Buffer() override;

   protected:
    int_type overflow(int_type character) override;

   private:
    void WriteLine();

    const std::string prefix_;
    std::ostream& out_;
    Mutex& mutex_;
    std::string line_;
  };

  Buffer buffer_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_PREFIXED_LINES_H_
