// An append-only file of records.
//
// Once Append has returned OK, the record survives the death of the process. If the process
// dies during Append, the incomplete record at the end is cut off when the log is opened. Any
// other difference from what was written is damage (DataLoss).
//
// A log can keep a reserve: file system space that is allocated behind its end and that only
// AppendFromReserve may use. It makes room for records that must be written on a full disk.

#ifndef SYNCGRADS_SERVER_STATE_RECORD_LOG_H_
#define SYNCGRADS_SERVER_STATE_RECORD_LOG_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// The system calls with which a log takes space. Tests replace them to simulate a full disk.
// Each function returns, and sets errno, like its system call.
class LogDisk {
 public:
  virtual ~LogDisk() = default;
  // Calls fallocate() for `length` bytes from `offset` on. The file keeps its size.
  virtual int Allocate(int file, off_t offset, off_t length) const;
  // Calls write().
  virtual ssize_t Write(int file, const void* data, size_t size) const;

  // The real system calls. Never destroyed.
  static const LogDisk& Real();
};

struct RecordLogOptions {
  // The bytes that Append leaves allocated behind the end; 0: no space is allocated ahead.
  uint64_t reserve = 0;
  // Must outlive the log.
  const LogDisk* disk = &LogDisk::Real();
};

// One open log file. Not thread-safe.
class RecordLog {
 public:
  // Creates a log at `path` with the records `first` and the reserve. It replaces a file at
  // `path` atomically; after an error, that file is unchanged.
  //
  // Errors:
  //   ResourceExhausted  the file system has no space for the log and its reserve
  //   Unavailable        the file cannot be written
  static absl::StatusOr<std::unique_ptr<RecordLog>> Create(const std::string& path,
                                                           const std::vector<std::string>& first,
                                                           const RecordLogOptions& options = {});
  static absl::StatusOr<std::unique_ptr<RecordLog>> Create(const std::string& path,
                                                           const std::string& first,
                                                           const RecordLogOptions& options = {}) {
    return Create(path, std::vector<std::string>{first}, options);
  }

  // Opens an existing log and appends all its records to `records`, which must be empty. If
  // there is no space for the reserve, the next Append tries again to allocate it.
  //
  // Errors:
  //   NotFound     there is no file at `path`
  //   DataLoss     the log is damaged or has no record; names the file, the record and the byte
  //   Unavailable  the file cannot be opened or read
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(const std::string& path,
                                                         std::vector<std::string>& records,
                                                         const RecordLogOptions& options = {});
  // Creates a log with the records `first` and the reserve in the file `path`, which is deleted
  // with the object unless MoveTo is called. Errors are those of Create.
  static absl::StatusOr<std::unique_ptr<RecordLog>> CreateTemporary(
      const std::string& path, const std::vector<std::string>& first,
      const RecordLogOptions& options = {});
  ~RecordLog();

  // Moves the file of the log to `path`, where it replaces a file atomically.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  the file cannot be renamed; the file at `path` is unchanged
  absl::Status MoveTo(const std::string& path);

  // Returns the records of a log, without changing the file.
  //
  // Errors: those of Open
  static absl::StatusOr<std::vector<std::string>> Read(const std::string& path);

  // Appends a record, and leaves the whole reserve allocated behind it. After an error the log
  // is unchanged, and later records can be appended if there is space. One exception: if an
  // incomplete record cannot be cut off, all later calls return an error that names the file.
  //
  // Errors:
  //   ResourceExhausted  there is no space for the record, or none for the reserve behind it
  //   Unavailable        the file cannot be written or cut
  absl::Status Append(const std::string& record);
  // Appends a record, which may use up the reserve. The next Append allocates the reserve again,
  // or fails. Errors and their effects are those of Append, except that a missing reserve is no
  // error.
  absl::Status AppendFromReserve(const std::string& record);

  // The number of records.
  uint64_t records() const { return records_; }
  // The length of the log in bytes.
  uint64_t bytes() const { return bytes_; }
  // The bytes that are allocated behind the end.
  uint64_t reserved() const { return allocated_ - bytes_; }

 private:
  RecordLog(std::string path, bool temporary, FileDescriptor file, const RecordLogOptions& options)
      : path_(std::move(path)), temporary_(temporary), file_(std::move(file)), options_(options) {}

  // Allocates space for `bytes` more bytes and for the reserve behind them.
  absl::Status Allocate(uint64_t bytes);
  absl::Status Write(const std::string& record);

  std::string path_;
  // The file is deleted with this object.
  bool temporary_;
  const FileDescriptor file_;
  const RecordLogOptions options_;
  uint64_t records_ = 0;
  uint64_t bytes_ = 0;
  // The offset at which the allocated space ends; at least bytes_.
  uint64_t allocated_ = 0;
  // False once the file system has reported that it cannot allocate ahead.
  bool can_allocate_ = true;
  // Not OK once an incomplete record could not be cut off: nothing is appended any more.
  absl::Status broken_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_RECORD_LOG_H_
