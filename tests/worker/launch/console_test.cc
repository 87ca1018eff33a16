#include "worker/launch/console.h"

#include <string>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

Console::Sink To(std::string& written, size_t columns) {
  return {.write = [&written](absl::string_view text) { written.append(text.data(), text.size()); },
          .columns = columns};
}

TEST(ConsoleTest, PrefixesLinesOfBothStreams) {
  std::string out, err;
  Console console(To(out, 0), To(err, 0));
  console.PrintLine(Console::Stream::kOut, "[worker 0] ", "loss 1");
  console.PrintLine(Console::Stream::kErr, "[server 1] ", "closed");
  EXPECT_EQ(out, "[worker 0] loss 1\n");
  EXPECT_EQ(err, "[server 1] closed\n");
}

TEST(ConsoleTest, WithoutATerminalThereIsNoStatus) {
  std::string out, err;
  Console console(To(out, 0), To(err, 0));
  console.SetStatus("[worker 0] ", "50%");
  EXPECT_EQ(out, "");
}

TEST(ConsoleTest, TheStatusStaysBelowOtherLines) {
  std::string terminal;
  Console console(To(terminal, 80), To(terminal, 80));
  console.SetStatus("[worker 0] ", "50%");
  console.PrintLine(Console::Stream::kErr, "[worker 1] ", "hello");
  EXPECT_EQ(terminal,
            "\r\x1b[K[worker 0] 50%"
            "\r\x1b[K[worker 1] hello\n"
            "[worker 0] 50%");
}

TEST(ConsoleTest, ErrorsInAFileDoNotTouchTheStatus) {
  std::string terminal, file;
  Console console(To(terminal, 80), To(file, 0));
  console.SetStatus("[worker 0] ", "50%");
  console.PrintLine(Console::Stream::kErr, "[worker 1] ", "hello");
  EXPECT_EQ(terminal, "\r\x1b[K[worker 0] 50%");
  EXPECT_EQ(file, "[worker 1] hello\n");
}

TEST(ConsoleTest, AStatusThatHasNotChangedIsNotDrawnAgain) {
  std::string terminal;
  Console console(To(terminal, 80), To(terminal, 80));
  console.SetStatus("", "50%");
  console.SetStatus("", "50%");
  EXPECT_EQ(terminal, "\r\x1b[K50%");
}

TEST(ConsoleTest, CutsTheStatusToTheTerminalWithoutSplittingCharacters) {
  std::string terminal;
  Console console(To(terminal, 6), To(terminal, 6));
  console.SetStatus("", "[██████]");
  EXPECT_EQ(terminal, "\r\x1b[K[████");
}

TEST(ConsoleTest, EndsTheLineOfTheStatus) {
  std::string terminal;
  {
    Console console(To(terminal, 80), To(terminal, 80));
    console.SetStatus("", "50%");
  }
  EXPECT_EQ(terminal, "\r\x1b[K50%\n");
}

}  // namespace
}  // namespace syncgrads
