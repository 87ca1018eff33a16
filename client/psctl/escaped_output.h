// Received text for a terminal.

#ifndef SYNCGRADS_CLIENT_PSCTL_ESCAPED_OUTPUT_H_
#define SYNCGRADS_CLIENT_PSCTL_ESCAPED_OUTPUT_H_

#include <google/protobuf/message.h>

#include <ostream>
#include <streambuf>
#include <string>

#include "absl/strings/string_view.h"

namespace syncgrads::client {

// Escapes control characters and line ends (\x0a) in all texts of a received message: each of them
// is printed as a part of one line, and must not begin another one. Fields of type `bytes` are left
// as they are.
void EscapeTexts(google::protobuf::Message& message);

// A stream that passes text on to another one, with control characters other than line ends
// escaped (\x1b): what servers send must not control the terminal. Line ends that a server has sent
// are escaped before, by EscapeTexts. The stream passes each line on when it is complete, and the
// rest when it is flushed or destroyed. Not thread-safe.
class EscapedOutput : public std::ostream {
 public:
  // `out` must outlive this object.
  explicit EscapedOutput(std::ostream& out) : std::ostream(nullptr), buffer_(out) {
    rdbuf(&buffer_);
  }
  ~EscapedOutput() override { flush(); }

  // Passes `text` on as it is, after what was written before.
  void WriteUnescaped(absl::string_view text);

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& out) : out_(out) {}

    std::ostream& out() { return out_; }

   protected:
    int_type overflow(int_type character) override;
    int sync() override;

   private:
    bool PassOn();

    std::ostream& out_;
    // The line that is not complete.
    std::string line_;
  };

  Buffer buffer_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_ESCAPED_OUTPUT_H_
