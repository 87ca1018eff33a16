#include "server/service/events/queued_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log_level.h"
#include "common/shm/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A pipe of one page.
class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    reading_.emplace(ends[0]);
    writing_.emplace(ends[1]);
    EXPECT_EQ(fcntl(writing(), F_SETPIPE_SZ, 4096), 4096);
  }
  int writing() const { return writing_->get(); }

  // Fills the pipe, so that the next write blocks.
  void Fill() {
    const int flags = fcntl(writing(), F_GETFL);
    fcntl(writing(), F_SETFL, flags | O_NONBLOCK);
    const std::string page(4096, '.');
    while (write(writing(), page.data(), page.size()) > 0) continue;
    EXPECT_EQ(errno, EAGAIN);
    fcntl(writing(), F_SETFL, flags);
  }
  void CloseWriting() { writing_.reset(); }
  void CloseReading() { reading_.reset(); }

  // Returns the lines that were written to the pipe.
  std::vector<std::string> Lines() {
    CloseWriting();
    std::string all;
    char buffer[4096];
    for (ssize_t length; (length = read(reading_->get(), buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<size_t>(length));
    }
    all.erase(0, all.find_first_not_of('.'));
    std::vector<std::string> lines = absl::StrSplit(all, '\n');
    EXPECT_EQ(lines.back(), "");
    lines.pop_back();
    return lines;
  }

 private:
  std::optional<FileDescriptor> reading_, writing_;
};

QueuedJournalOptions Named() {
  QueuedJournalOptions options;
  options.name = "ps-server 3";
  return options;
}

TEST(QueuedJournalTest, WritesLinesInOrderWithTheirDatesAndNames) {
  Pipe pipe;
  {
    auto options = Named();
    absl::Time date =
        absl::FromCivil(absl::CivilSecond(2024, 5, 17, 9, 30, 12), absl::LocalTimeZone());
    options.now = [&date] { return std::exchange(date, date + absl::Milliseconds(1)); };
    QueuedJournal journal(pipe.writing(), options);
    journal.Note("one");
    journal.Warn("two");
  }
  EXPECT_THAT(pipe.Lines(), ElementsAre("2024-05-17T09:30:12.000 I ps-server 3: one",
                                        "2024-05-17T09:30:12.001 W ps-server 3: two"));
}

TEST(QueuedJournalTest, WritesOnlyLinesOfItsLevelAndAbove) {
  const auto count = [](std::optional<LogLevel> level) {
    Pipe pipe;
    {
      auto options = Named();
      if (level.has_value()) options.level = *level;
      QueuedJournal journal(pipe.writing(), options);
      journal.Debug("a detail");
      journal.Note("an event");
      journal.Warn("a fault");
    }
    const std::vector<std::string> lines = pipe.Lines();
    EXPECT_THAT(lines.back(), EndsWith(" W ps-server 3: a fault"));
    return lines.size();
  };
  EXPECT_EQ(count(LogLevel::kDebug), 3u);
  EXPECT_EQ(count(std::nullopt), 2u) << "info is the default";
  EXPECT_EQ(count(LogLevel::kWarning), 1u);
}

TEST(QueuedJournalTest, AReaderThatDoesNotReadMakesNobodyWait) {
  Pipe pipe;
  pipe.Fill();
  auto options = Named();
  options.max_lines = 3;
  options.flush_timeout = absl::InfiniteDuration();
  auto journal = std::make_unique<QueuedJournal>(pipe.writing(), options);
  for (int i = 0; i < 10; ++i) journal->Note(absl::StrCat("line ", i));
  std::thread end([&journal] { journal.reset(); });
  const std::vector<std::string> lines = pipe.Lines();
  end.join();
  ASSERT_THAT(lines, SizeIs(4));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(lines[i], EndsWith(absl::StrCat("line ", i)));
  EXPECT_THAT(lines[3], HasSubstr("W ps-server 3: 7 log lines were dropped here"));
}

TEST(QueuedJournalTest, TheNumberOfDroppedLinesStandsWhereTheyWere) {
  Pipe pipe;
  pipe.Fill();
  auto options = Named();
  options.max_bytes = 100;
  options.flush_timeout = absl::InfiniteDuration();
  auto journal = std::make_unique<QueuedJournal>(pipe.writing(), options);
  journal->Note(std::string(90, 'a'));
  journal->Note(std::string(90, 'b'));
  journal->Note("fits");
  std::thread end([&journal] { journal.reset(); });
  const std::vector<std::string> lines = pipe.Lines();
  end.join();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], EndsWith("aaa"));
  EXPECT_THAT(lines[1], HasSubstr("1 log lines were dropped"));
  EXPECT_THAT(lines[2], EndsWith("fits"));
}

TEST(QueuedJournalTest, EndsWithoutAReader) {
  Pipe pipe;
  pipe.Fill();
  auto options = Named();
  options.flush_timeout = absl::Milliseconds(1);
  {
    QueuedJournal journal(pipe.writing(), options);
    journal.Note("nobody reads this");
  }
  pipe.CloseReading();  // the writer's last write fails
  {
    QueuedJournal journal(pipe.writing(), Named());
    journal.Note("a reader that has gone does not end the program");
  }
}

TEST(QueuedJournalTest, WhatAWorkerIsCalledStaysInItsLine) {
  Pipe pipe;
  {
    QueuedJournal journal(pipe.writing(), Named());
    journal.Note(
        "worker \"a\nI ps-server 3: all is well\x1b[2J\x7f\xc2\x9b\xff\t\r\" joins, caf\xc3\xa9");
    journal.Note(std::string("a zero \0 byte", 13));
  }
  const std::vector<std::string> lines = pipe.Lines();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(
      lines[0],
      EndsWith("worker \"a\\x0aI ps-server 3: all is well\\x1b[2J\\x7f\\xc2\\x9b\\xff\\x09\\x0d\" "
               "joins, caf\xc3\xa9"));
  EXPECT_THAT(lines[1], EndsWith("a zero \\x00 byte"));
}

TEST(QueuedJournalTest, ALongLineIsCut) {
  Pipe pipe;
  {
    auto options = Named();
    options.max_line_bytes = 10;
    QueuedJournal journal(pipe.writing(), options);
    journal.Note("0123456789abcdef");
  }
  EXPECT_THAT(pipe.Lines(), ElementsAre(EndsWith(": 0123456789... (16 bytes)")));
}

TEST(QueuedJournalTest, KeepsTheLinesOfManyThreadsWhole) {
  constexpr int kThreads = 4, kLines = 500;
  Pipe pipe;
  auto options = Named();
  options.flush_timeout = absl::InfiniteDuration();
  auto journal = std::make_unique<QueuedJournal>(pipe.writing(), options);
  std::thread notes([&journal] {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&journal, thread] {
        for (int i = 0; i < kLines; ++i)
          journal->Note(absl::StrCat("thread ", thread, " line ", i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    journal.reset();
  });
  const std::vector<std::string> lines = pipe.Lines();
  notes.join();
  ASSERT_THAT(lines, SizeIs(kThreads * kLines));
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : lines) {
    const size_t thread = static_cast<size_t>(line[line.find("thread ") + 7] - '0');
    ASSERT_LT(thread, next.size()) << line;
    EXPECT_THAT(line, EndsWith(absl::StrCat(" line ", next[thread]++)));
  }
}

}  // namespace
}  // namespace syncgrads::server
