// An append-only file of records.
//
// Once Append has returned OK, the record survives the death of the process. If the process
// dies during Append, the incomplete record at the end is cut off when the log is opened. Any
// other difference from what was written is damage (DataLoss).
//
// A log can keep a reserve: file system space that is allocated behind its end and that only
// AppendFromReserve may use. It makes room for records that must be written on a full disk.
//
// A log can have a copy: a second log of the same records, in the file PATH.copy. Each record is
// written to the log first. What is damaged in one of the two files is restored from the other one
// when the log is opened.

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
  // Whether the log has a copy. If the copy cannot be written, for example on a full disk, the log
  // has none until it is replaced or opened again.
  bool copied = false;
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
  // there is no space for the reserve, the next Append tries again to allocate it. If the log is
  // damaged or missing and has a copy, it is replaced by the copy; see replaced(). Otherwise the
  // copy is written anew if it differs.
  //
  // Errors:
  //   NotFound     there is no file at `path`, and no copy
  //   DataLoss     the log is damaged or has no record, and so is its copy; names the file, the
  //                record and the byte
  //   Unavailable  the file cannot be opened or read; or the log is damaged or missing, and the
  //                copy cannot be opened or read
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(const std::string& path,
                                                         std::vector<std::string>& records,
                                                         const RecordLogOptions& options = {});
  // Creates a log with the records `first` and the reserve in the file `path`, which is deleted
  // with the object unless MoveTo is called. Errors are those of Create.
  static absl::StatusOr<std::unique_ptr<RecordLog>> CreateTemporary(
      const std::string& path, const std::vector<std::string>& first,
      const RecordLogOptions& options = {});
  ~RecordLog();

  // Moves the file of the log to `path`, where it replaces a file atomically, and then its copy.
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

  // Why Open has replaced the log by its copy. OK if it has not.
  const absl::Status& replaced() const { return replaced_; }
  // The number of records.
  uint64_t records() const { return records_; }
  // The length of the log in bytes.
  uint64_t bytes() const { return bytes_; }
  // The bytes that are allocated behind the end.
  uint64_t reserved() const { return allocated_ - bytes_; }

 private:
  RecordLog(std::string path, bool temporary, FileDescriptor file, const RecordLogOptions& options)
      : path_(std::move(path)), temporary_(temporary), file_(std::move(file)), options_(options) {}

  // What is in a file.
  struct Found;
  // Reads a log, and cuts an incomplete record off.
  static absl::StatusOr<Found> Find(const std::string& path);
  // Returns a log of what was found at `path`, without a copy.
  static std::unique_ptr<RecordLog> Adopt(const std::string& path, Found found,
                                          const RecordLogOptions& options);

  // Allocates space for `bytes` more bytes and for the reserve behind them.
  absl::Status Allocate(uint64_t bytes);
  absl::Status Write(const std::string& record);
  // Deletes a copy that lacks a record.
  void DropCopy();

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
  absl::Status replaced_;
  // Null if the log has none.
  std::unique_ptr<RecordLog> copy_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_RECORD_LOG_H_
