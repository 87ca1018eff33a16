#include "server/state/record_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/checksum.h"

// A record, in the machine's own byte order:
//
//   u64 length    of the contents
//   u64 contents  their checksum
//   u64 head      the checksum of both, chained to the record's number: a head
//                 that is whole and wrong is damage, not the end of the file
//   contents

namespace syncgrads::server {
namespace {

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

// As one call: a record that is cut off has no other behind it.
absl::Status Write(const std::string& path, int file, const std::string& record, uint64_t number) {
  const Head head = HeadOf(record, number);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes += record;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(file, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(path, "write");
    done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(const std::string& path, int file) {
  struct stat status;
  if (fstat(file, &status) != 0) return Failed(path, "stat");
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t length =
        pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return Failed(path, "read");
    if (length == 0) break;
    done += static_cast<size_t>(length);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Create(
    const std::string& path, const std::vector<std::string>& first) {
  const std::string temporary = path + ".new";
  FileDescriptor file(
      open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!file.valid()) return Failed(temporary, "open");
  uint64_t bytes = 0;
  for (size_t number = 0; number < first.size(); ++number) {
    SYNCGRADS_RETURN_IF_ERROR(Write(temporary, file.get(), first[number], number));
    bytes += sizeof(Head) + first[number].size();
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return Failed(path, "rename");
  return std::unique_ptr<RecordLog>(new RecordLog(path, std::move(file), first.size(), bytes));
}

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Open(const std::string& path,
                                                           std::vector<std::string>& records) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("there is no ", path));
    return Failed(path, "open");
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(path, file.get()));
  size_t at = 0;
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
  if (records.empty()) {
    return absl::DataLossError(absl::StrCat(path, " of ", bytes.size(), " bytes has no record"));
  }
  if (at < bytes.size() && ftruncate(file.get(), static_cast<off_t>(at)) != 0) {
    return Failed(path, "cut");
  }
  return std::unique_ptr<RecordLog>(new RecordLog(path, std::move(file), records.size(), at));
}

absl::Status RecordLog::Append(const std::string& record) {
  SYNCGRADS_RETURN_IF_ERROR(broken_);
  const absl::Status written = Write(path_, file_.get(), record, records_);
  if (!written.ok()) {
    // Half a record has none behind it, or it would be taken for damage.
    if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) broken_ = written;
    return written;
  }
  ++records_;
  bytes_ += sizeof(Head) + record.size();
  return absl::OkStatus();
}

}  // namespace syncgrads::server
