#include "server/service/events/queued_journal.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/names.h"
#include "common/shm/region.h"

namespace syncgrads::server {
namespace {

// The maximum size of one write(), unless a single line is longer. A pipe accepts writes of up to
// PIPE_BUF (4096) bytes atomically, so that the lines of several processes do not mix.
constexpr size_t kBatchBytes = 4096;

}  // namespace

// The queue of lines, and the file that they are written to. Thread-safe.
class QueuedJournal::Queue {
 public:
  Queue(int file, QueuedJournalOptions options)
      : options_(std::move(options)), file_(dup(file)), zone_(absl::LocalTimeZone()) {}

  void Add(char level, absl::string_view line) {
    Line added{options_.now(), level, std::string(line.substr(0, options_.max_line_bytes))};
    if (line.size() > options_.max_line_bytes) {
      absl::StrAppend(&added.text, "... (", line.size(), " bytes)");
    }
    MutexLock lock(mutex_);
    if (lines_ >= options_.max_lines || bytes_ + added.text.size() > options_.max_bytes) {
      ++dropped_;
      return;
    }
    if (dropped_ > 0) PushLocked(DroppedLocked());
    PushLocked(std::move(added));
    changed_.NotifyAll();
  }

  // Runs on the writer thread: writes lines until End has been called and no line is left.
  void Write() {
    // If the reader of a pipe has exited, SIGPIPE must not end the server.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    MutexLock lock(mutex_);
    while (true) {
      while (waiting_.empty() && dropped_ == 0 && !ending_) {
        changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      if (waiting_.empty() && dropped_ > 0) PushLocked(DroppedLocked());
      if (waiting_.empty()) return;
      std::string batch;
      size_t lines = 0, bytes = 0;
      while (!waiting_.empty() && batch.size() < kBatchBytes) {
        const std::string written = Format(waiting_.front());
        if (!batch.empty() && batch.size() + written.size() > kBatchBytes) break;
        batch += written;
        ++lines;
        bytes += waiting_.front().text.size();
        waiting_.pop_front();
      }
      mutex_.Unlock();
      WriteAll(batch);
      mutex_.Lock();
      lines_ -= lines;
      bytes_ -= bytes;
      changed_.NotifyAll();
    }
  }

  // Ends the writer thread as soon as all lines are written. Returns false if `deadline` passes
  // first.
  bool End(absl::Time deadline) {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      changed_.NotifyAll();
    }
    return AwaitWritten(deadline);
  }

  // Waits until all lines are written. Returns false if `deadline` passes first.
  bool AwaitWritten(absl::Time deadline) {
    MutexLock lock(mutex_);
    while (lines_ > 0 || dropped_ > 0) {
      if (!changed_.WaitUntil(mutex_, deadline) && MonotonicNow() >= deadline) return false;
    }
    return true;
  }

 private:
  struct Line {
    absl::Time date;
    char level;
    std::string text;
  };

  Line DroppedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t dropped = std::exchange(dropped_, 0);
    return {options_.now(), 'W',
            absl::StrCat(dropped, " log lines were dropped here because stderr was blocked")};
  }
  void PushLocked(Line line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++lines_;
    bytes_ += line.text.size();
    waiting_.push_back(std::move(line));
  }
  std::string Format(const Line& line) const {
    return absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", line.date, zone_), " ",
                        absl::string_view(&line.level, 1), " ", options_.name, ": ",
                        Printable(line.text, line.text.size()), "\n");
  }
  // Writes `bytes` to the file. If the file returns an error, the rest is lost.
  void WriteAll(absl::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }

  const QueuedJournalOptions options_;
  const FileDescriptor file_;
  const absl::TimeZone zone_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Line> waiting_ ABSL_GUARDED_BY(mutex_);
  // The number and the bytes of the lines that wait or are being written.
  size_t lines_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The number of lines that were dropped since the last queued line.
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

QueuedJournal::QueuedJournal(int file, QueuedJournalOptions options)
    : level_(options.level),
      flush_timeout_(options.flush_timeout),
      queue_(std::make_shared<Queue>(file, std::move(options))),
      writer_([queue = queue_] { queue->Write(); }) {}

QueuedJournal::~QueuedJournal() {
  if (queue_->End(MonotonicNow() + flush_timeout_)) {
    writer_.join();
  } else {
    writer_.detach();
  }
}

bool QueuedJournal::Flush() { return queue_->AwaitWritten(MonotonicNow() + flush_timeout_); }

void QueuedJournal::Debug(const std::string& line) {
  if (level_ <= LogLevel::kDebug) queue_->Add('D', line);
}
void QueuedJournal::Note(const std::string& line) {
  if (level_ <= LogLevel::kInfo) queue_->Add('I', line);
}
void QueuedJournal::Warn(const std::string& line) { queue_->Add('W', line); }

}  // namespace syncgrads::server
