#include "server/state/record_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/checksum.h"

// The layout of a record, in the machine's own byte order:
//
//   u64 length    the length of the contents, in bytes
//   u64 contents  the checksum of the contents
//   u64 head      the checksum of `length` and `contents`, chained to the record's number. A
//                 complete head with a wrong checksum is damage, not an incomplete record
//   contents

namespace syncgrads::server {
namespace {

// The bytes to allocate beyond the reserve, so that few appends have to allocate.
constexpr uint64_t kAllocatedAhead = 64 << 10;

struct Head {
  uint64_t length;
  uint64_t contents;
  uint64_t head;
};

Head HeadOf(const std::string& record, uint64_t number) {
  Head head = {record.size(), Checksum(record.data(), record.size()), 0};
  head.head = Checksum(&head, offsetof(Head, head), number + 1);
  return head;
}

absl::Status Failed(const std::string& path, const char* step) {
  const int error = errno;
  const std::string why = absl::StrCat(path, ": ", step, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(why)
                                                              : absl::UnavailableError(why);
}

// Appends the next bytes of the file to `bytes`, which has all that are before them. Returns false
// at the end of the file.
absl::StatusOr<bool> ReadMore(const std::string& path, int file, std::string& bytes) {
  const size_t before = bytes.size();
  // Most logs are short.
  const size_t piece = std::clamp<size_t>(before, 4 << 10, 1 << 20);
  bytes.resize(before + piece);
  ssize_t length = -1;
  do {
    length = pread(file, bytes.data() + before, piece, static_cast<off_t>(before));
  } while (length < 0 && errno == EINTR);
  if (length < 0) return Failed(path, "read");
  bytes.resize(before + static_cast<size_t>(length));
  return length > 0;
}

absl::StatusOr<FileDescriptor> OpenFile(const std::string& path, int flags) {
  FileDescriptor file(open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  if (file.valid()) return file;
  if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("no such file: ", path));
  return Failed(path, "open");
}

// Appends the complete records in `bytes`, from the offset `at` on, to `records`, and sets `at` to
// the end of the last one.
absl::Status Parse(const std::string& path, const std::string& bytes, size_t& at,
                   std::vector<std::string>& records) {
  while (bytes.size() - at >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, bytes.data() + at, sizeof(head));
    const auto damaged = [&](const char* what) {
      return absl::DataLossError(absl::StrCat(path, ": record ", records.size(), " at byte ", at,
                                              " has a damaged ", what));
    };
    if (head.head != Checksum(&head, offsetof(Head, head), records.size() + 1)) {
      return damaged("head");
    }
    if (bytes.size() - at - sizeof(head) < head.length) break;
    std::string record = bytes.substr(at + sizeof(head), head.length);
    if (head.contents != Checksum(record.data(), record.size())) return damaged("content");
    records.push_back(std::move(record));
    at += sizeof(head) + head.length;
  }
  return absl::OkStatus();
}

// Reads the file into `bytes`, and the complete records in it into `records`. Returns the offset at
// which the last one ends. A damaged file is not read further: its size may be absurd.
absl::StatusOr<size_t> ReadRecords(const std::string& path, int file, std::string& bytes,
                                   std::vector<std::string>& records) {
  size_t end = 0;
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, ReadMore(path, file, bytes));
    if (!more) break;
    SYNCGRADS_RETURN_IF_ERROR(Parse(path, bytes, end, records));
  }
  if (records.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, " of ", bytes.size(), " bytes has no complete record"));
  }
  return end;
}

std::string CopyPath(const std::string& path) { return path + ".copy"; }

// Returns the options of a log's copy.
RecordLogOptions OfCopy(RecordLogOptions options) {
  options.copied = false;
  return options;
}

}  // namespace

int LogDisk::Allocate(int file, off_t offset, off_t length) const {
  return fallocate(file, FALLOC_FL_KEEP_SIZE, offset, length);
}

ssize_t LogDisk::Write(int file, const void* data, size_t size) const {
  return write(file, data, size);
}

const LogDisk& LogDisk::Real() {
  static const LogDisk* const disk = new LogDisk();
  return *disk;
}

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::CreateTemporary(
    const std::string& path, const std::vector<std::string>& first,
    const RecordLogOptions& options) {
  FileDescriptor file(
      open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return Failed(path, "open");
  std::unique_ptr<RecordLog> log(new RecordLog(path, /*temporary=*/true, std::move(file), options));
  if (options.copied) {
    auto copy = CreateTemporary(CopyPath(path), std::vector<std::string>(), OfCopy(options));
    if (copy.ok()) log->copy_ = *std::move(copy);
  }
  for (const std::string& record : first) SYNCGRADS_RETURN_IF_ERROR(log->Append(record));
  return log;
}

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Create(const std::string& path,
                                                             const std::vector<std::string>& first,
                                                             const RecordLogOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log,
                             CreateTemporary(path + ".new", first, options));
  SYNCGRADS_RETURN_IF_ERROR(log->MoveTo(path));
  return log;
}

RecordLog::~RecordLog() {
  if (temporary_) unlink(path_.c_str());
}

absl::Status RecordLog::MoveTo(const std::string& path) {
  if (rename(path_.c_str(), path.c_str()) != 0) return Failed(path, "rename");
  path_ = path;
  temporary_ = false;
  if (copy_ != nullptr && !copy_->MoveTo(CopyPath(path)).ok()) copy_ = nullptr;
  // What may be there is the copy of the log that was replaced.
  if (options_.copied && copy_ == nullptr) unlink(CopyPath(path).c_str());
  return absl::OkStatus();
}

struct RecordLog::Found {
  FileDescriptor file;
  std::vector<std::string> records;
  // The bytes of all records, without an incomplete one at the end.
  std::string bytes;
};

absl::StatusOr<RecordLog::Found> RecordLog::Find(const std::string& path) {
  Found found;
  SYNCGRADS_ASSIGN_OR_RETURN(found.file, OpenFile(path, O_RDWR | O_APPEND));
  SYNCGRADS_ASSIGN_OR_RETURN(const size_t end,
                             ReadRecords(path, found.file.get(), found.bytes, found.records));
  if (end < found.bytes.size() && ftruncate(found.file.get(), static_cast<off_t>(end)) != 0) {
    return Failed(path, "cut");
  }
  found.bytes.resize(end);
  return found;
}

std::unique_ptr<RecordLog> RecordLog::Adopt(const std::string& path, Found found,
                                            const RecordLogOptions& options) {
  std::unique_ptr<RecordLog> log(
      new RecordLog(path, /*temporary=*/false, std::move(found.file), options));
  log->records_ = found.records.size();
  log->bytes_ = log->allocated_ = found.bytes.size();
  log->Allocate(0).IgnoreError();
  return log;
}

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Open(const std::string& path,
                                                           std::vector<std::string>& records,
                                                           const RecordLogOptions& options) {
  absl::StatusOr<Found> found = Find(path);
  absl::StatusOr<Found> copy = absl::NotFoundError("");
  if (options.copied) copy = Find(CopyPath(path));
  absl::Status lost = found.status();
  if (found.ok() && copy.ok() && copy->bytes.size() > found->bytes.size() &&
      absl::StartsWith(copy->bytes, found->bytes)) {
    lost =
        absl::DataLossError(absl::StrCat(path, " has lost its end: it has ", found->records.size(),
                                         " of ", copy->records.size(), " records"));
  }
  if ((absl::IsDataLoss(lost) || absl::IsNotFound(lost)) && copy.ok()) {
    SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log,
                               Create(path, copy->records, options));
    log->replaced_ = std::move(lost);
    records = std::move(copy->records);
    return log;
  }
  if (absl::IsDataLoss(lost) || absl::IsNotFound(lost)) {
    // A copy that cannot be read now, for lack of descriptors for example, may be whole.
    if (!absl::IsDataLoss(copy.status()) && !absl::IsNotFound(copy.status())) return copy.status();
  }
  if (!found.ok()) {
    return absl::IsDataLoss(copy.status())
               ? absl::DataLossError(absl::StrCat(lost.message(), "; ", copy.status().message()))
               : lost;
  }
  records = found->records;
  const bool is_copied = copy.ok() && copy->bytes == found->bytes;
  std::unique_ptr<RecordLog> log = Adopt(path, *std::move(found), options);
  if (is_copied) {
    log->copy_ = Adopt(CopyPath(path), *std::move(copy), OfCopy(options));
  } else if (options.copied) {
    auto created = Create(CopyPath(path), records, OfCopy(options));
    if (created.ok()) log->copy_ = *std::move(created);
  }
  return log;
}

absl::StatusOr<std::vector<std::string>> RecordLog::Read(const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  std::string bytes;
  std::vector<std::string> records;
  SYNCGRADS_RETURN_IF_ERROR(ReadRecords(path, file.get(), bytes, records).status());
  return records;
}

absl::Status RecordLog::Append(const std::string& record) {
  SYNCGRADS_RETURN_IF_ERROR(broken_);
  SYNCGRADS_RETURN_IF_ERROR(Allocate(sizeof(Head) + record.size()));
  SYNCGRADS_RETURN_IF_ERROR(Write(record));
  if (copy_ != nullptr && !copy_->Append(record).ok()) DropCopy();
  return absl::OkStatus();
}

absl::Status RecordLog::AppendFromReserve(const std::string& record) {
  SYNCGRADS_RETURN_IF_ERROR(broken_);
  Allocate(sizeof(Head) + record.size()).IgnoreError();
  SYNCGRADS_RETURN_IF_ERROR(Write(record));
  if (copy_ != nullptr && !copy_->AppendFromReserve(record).ok()) DropCopy();
  return absl::OkStatus();
}

void RecordLog::DropCopy() {
  copy_->temporary_ = true;
  copy_ = nullptr;
}

absl::Status RecordLog::Allocate(uint64_t bytes) {
  const uint64_t needed = bytes_ + bytes + options_.reserve;
  if (options_.reserve == 0 || !can_allocate_ || needed <= allocated_) return absl::OkStatus();
  for (const uint64_t ahead : {kAllocatedAhead, uint64_t{0}}) {
    const uint64_t end = needed + ahead;
    if (options_.disk->Allocate(file_.get(), static_cast<off_t>(bytes_),
                                static_cast<off_t>(end - bytes_)) == 0) {
      allocated_ = end;
      return absl::OkStatus();
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) {
      can_allocate_ = false;
      return absl::OkStatus();
    }
  }
  return Failed(path_, "allocate");
}

absl::Status RecordLog::Write(const std::string& record) {
  const Head head = HeadOf(record, records_);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes += record;
  // Head and contents in one write(): if the process dies, only the last record of the file can
  // be incomplete.
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written =
        options_.disk->Write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written >= 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const absl::Status failed = Failed(path_, "write");
    if (done == 0) return failed;
    // The incomplete record is cut off: a record behind it would make it damage. The cut also
    // frees the reserve, so it is allocated again.
    if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) broken_ = Failed(path_, "cut");
    allocated_ = bytes_;
    Allocate(0).IgnoreError();
    return failed;
  }
  ++records_;
  bytes_ += bytes.size();
  allocated_ = std::max(allocated_, bytes_);
  return absl::OkStatus();
}

}  // namespace syncgrads::server
