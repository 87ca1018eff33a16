#include "client/psctl/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/json.h"
#include "common/private_directory.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// How long `stop` waits for the recorder, and how often it tries.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

std::string LineOf(const absl::Status& status) {
  return absl::StrCat(status.raw_code(), " ", absl::StrReplaceAll(status.message(), {{"\n", " "}}),
                      "\n");
}

// Parses what LineOf returns.
absl::Status StatusOfLine(absl::string_view line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) {
    return absl::InternalError("the recorder has ended without a result");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

bool WriteAll(int file, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::string ReadAll(int file) {
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t bytes = read(file, part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(part, static_cast<size_t>(bytes));
  }
}

// The file that the recorder locks. The lock is that of all processes that have inherited the
// descriptor.
class LockedFile {
 public:
  static absl::StatusOr<LockedFile> Open(const RecorderOptions& options) {
    SYNCGRADS_RETURN_IF_ERROR(MakePrivateDirectory(options.directory));
    const size_t name =
        std::hash<std::string>()(absl::StrCat(options.trace.server, "\n", options.trace.job));
    const std::string path = absl::StrCat(options.directory, "/recorder-", absl::Hex(name));
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.valid()) return LockedFile(std::move(file));
    return absl::PermissionDeniedError(
        absl::StrCat(path, " cannot be opened: ", std::strerror(errno)));
  }

  // Whether this process has the lock.
  bool TryLock() const { return flock(file_.get(), LOCK_EX | LOCK_NB) == 0; }
  // Gives the lock up for all processes that have it.
  void Unlock() const { flock(file_.get(), LOCK_UN); }
  // Whether this process has got the lock before MonotonicNow() is `deadline`.
  bool LockUntil(absl::Time deadline) const {
    while (!TryLock()) {
      if (MonotonicNow() >= deadline) return false;
      absl::SleepFor(kPoll);
    }
    return true;
  }
  std::string Read() const {
    lseek(file_.get(), 0, SEEK_SET);
    return ReadAll(file_.get());
  }
  void Write(absl::string_view text) const {
    if (ftruncate(file_.get(), 0) != 0) return;
    lseek(file_.get(), 0, SEEK_SET);
    WriteAll(file_.get(), text);
  }

 private:
  explicit LockedFile(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

// Leaves the terminal, so that its end does not end this process.
void Detach() {
  setsid();
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), number);
}

// The recorder. Writes the line of a status to `to_parent` when it records or cannot record.
void RunRecorder(const RecorderOptions& options, const std::function<Caller()>& connect,
                 const LockedFile& file, FileDescriptor to_parent) {
  Detach();
  TraceOptions trace = options.trace;
  trace.caller = connect();
  const absl::StatusOr<TraceSummary> summary = RecordTimeline(trace, [&](const std::string& job) {
    WriteAll(to_parent.get(), LineOf(absl::Status(absl::StatusCode::kOk, "")));
    WriteAll(to_parent.get(), job);
    to_parent = FileDescriptor();
  });
  if (to_parent.valid()) {
    // The next `start` may come before this process has ended.
    file.Unlock();
    WriteAll(to_parent.get(), LineOf(summary.status()));
  } else if (summary.ok()) {
    file.Write(absl::StrCat(LineOf(CheckComplete(*summary)), JsonOf(*summary), TextOf(*summary)));
  } else {
    file.Write(absl::StrCat(LineOf(summary.status()), "\n"));
  }
}

}  // namespace

absl::Status StartRecorder(const RecorderOptions& options, const std::function<Caller()>& connect,
                           std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const LockedFile file, LockedFile::Open(options));
  if (!file.TryLock()) {
    return absl::FailedPreconditionError(
        "`trace start` has begun a recording that has not ended; `trace stop` ends it");
  }
  file.Write("");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  }
  const FileDescriptor from_recorder(ends[0]);
  FileDescriptor to_parent(ends[1]);
  out.flush();
  const pid_t recorder = fork();
  if (recorder < 0) {
    return absl::UnavailableError(absl::StrCat("no process: ", std::strerror(errno)));
  }
  if (recorder == 0) {
    RunRecorder(options, connect, file, std::move(to_parent));
    _exit(0);
  }
  to_parent = FileDescriptor();
  const std::pair<std::string, std::string> answer =
      absl::StrSplit(ReadAll(from_recorder.get()), absl::MaxSplits('\n', 1));
  SYNCGRADS_RETURN_IF_ERROR(StatusOfLine(answer.first));
  const std::string& job = answer.second;
  if (options.json) {
    out << "{\"job\":" << JsonString(job) << "}\n";
  } else {
    out << "recording job \"" << job << "\" until `psctl trace stop`, for at most "
        << absl::FormatDuration(options.trace.length) << "\n";
  }
  return absl::OkStatus();
}

absl::Status StopRecorder(const RecorderOptions& options, const Caller& caller, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const LockedFile file, LockedFile::Open(options));
  TraceOptions trace = options.trace;
  trace.caller = caller;
  const absl::StatusOr<std::optional<std::string>> stopped = StopTimeline(trace);
  // If no server answers, the recorder ends too.
  if (!file.LockUntil(MonotonicNow() + kPatience)) {
    return absl::DeadlineExceededError(
        absl::StrCat("the recorder has not ended in ", absl::FormatDuration(kPatience)));
  }
  const std::vector<std::string> result = absl::StrSplit(file.Read(), absl::MaxSplits('\n', 2));
  if (result.size() == 3) {
    file.Write("");
    if (!result[1].empty()) out << (options.json ? result[1] + "\n" : result[2]);
    return StatusOfLine(result[0]);
  }
  SYNCGRADS_RETURN_IF_ERROR(stopped.status());
  if (!stopped->has_value()) return absl::NotFoundError("no recording is in progress");
  if (options.json) {
    out << "{}\n";
  } else {
    out << "the recording of job \"" << **stopped
        << "\" has ended; it was not begun here with this --server and --job, so its file is "
           "elsewhere\n";
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::client
