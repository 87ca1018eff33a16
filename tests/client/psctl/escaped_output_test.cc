#include "client/psctl/escaped_output.h"

#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "proto/admin.pb.h"

namespace syncgrads::client {
namespace {

TEST(EscapedOutputTest, ControlCharactersDoNotReachTheTerminal) {
  std::ostringstream terminal;
  {
    EscapedOutput out(terminal);
    out << "worker \"\x1b]0;title\x07\" at \x9b" << 7 << "\r\n";
    out << "naïve \u2713 job\n\xc2\x9b" << std::flush << "the rest";
  }
  EXPECT_EQ(terminal.str(),
            "worker \"\\x1b]0;title\\x07\" at \\x9b7\\x0d\nnaïve \u2713 job\n\\xc2\\x9bthe rest");
}

TEST(EscapedOutputTest, ACharacterThatIsWrittenInPartsIsNotEscaped) {
  std::ostringstream terminal;
  EscapedOutput out(terminal);
  out << "\xe2"
      << "\x9c"
      << "\x93" << std::endl;
  EXPECT_EQ(terminal.str(), "\u2713\n");
}

TEST(EscapedOutputTest, LinesArePassedOnWhenTheyAreComplete) {
  std::ostringstream terminal;
  EscapedOutput out(terminal);
  out << "one\ntwo";
  EXPECT_EQ(terminal.str(), "one\n");
  out.WriteUnescaped("\x1b[H");
  EXPECT_EQ(terminal.str(), "one\ntwo\x1b[H");
}

TEST(EscapedOutputTest, EachTextOfAMessageStaysOnOneLine) {
  v1::GetStatusReply reply;
  reply.mutable_server()->set_version("1.0\nserver 9: fine");
  v1::JobStatus& job = *reply.add_jobs();
  job.set_job("iris\r\u202e");
  job.add_waits("one\ntwo");
  job.add_waits("na\u00efve \u2713");
  job.add_members()->set_name("\x1b[2J");
  EscapeTexts(reply);
  EXPECT_EQ(reply.server().version(), "1.0\\x0aserver 9: fine");
  EXPECT_EQ(job.job(), "iris\\x0d\\xe2\\x80\\xae");
  EXPECT_EQ(job.waits(0), "one\\x0atwo");
  EXPECT_EQ(job.waits(1), "na\u00efve \u2713");
  EXPECT_EQ(job.members(0).name(), "\\x1b[2J");
}

TEST(EscapedOutputTest, AnErrorOfTheTerminalIsAnError) {
  std::ostringstream terminal;
  EscapedOutput out(terminal);
  terminal.setstate(std::ios::badbit);
  out << "text";
  EXPECT_TRUE(out.good());
  out.flush();
  EXPECT_FALSE(out.good());
}

}  // namespace
}  // namespace syncgrads::client
