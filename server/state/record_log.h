// A file of records that is only ever added to: what a server must not forget.
//
// A record is there once Append has returned, whatever kills the process; one that
// was being written then is cut off when the log is opened. Anything else that is
// not as it was written is damage.

#ifndef SYNCGRADS_SERVER_STATE_RECORD_LOG_H_
#define SYNCGRADS_SERVER_STATE_RECORD_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/region.h"

namespace syncgrads::server {

// Not thread-safe.
class RecordLog {
 public:
  // A log that begins with these records. It takes the place of any of that name at
  // once, or, if this fails, not at all.
  //
  // Errors:
  //   ResourceExhausted  there is no room for it
  //   Unavailable        the file cannot be written
  static absl::StatusOr<std::unique_ptr<RecordLog>> Create(const std::string& path,
                                                           const std::vector<std::string>& first);
  static absl::StatusOr<std::unique_ptr<RecordLog>> Create(const std::string& path,
                                                           const std::string& first) {
    return Create(path, std::vector<std::string>{first});
  }

  // The log that is there, and its records.
  //
  // Errors:
  //   NotFound     there is none
  //   DataLoss     it is damaged; names the file, the record and the byte
  //   Unavailable  it cannot be read
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(const std::string& path,
                                                         std::vector<std::string>& records);

  // After an error the log is as it was, or takes no more records.
  //
  // Errors: as Create
  absl::Status Append(const std::string& record);

  uint64_t bytes() const { return bytes_; }

 private:
  RecordLog(std::string path, FileDescriptor file, uint64_t records, uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), records_(records), bytes_(bytes) {}

  const std::string path_;
  const FileDescriptor file_;
  uint64_t records_;
  uint64_t bytes_;
  absl::Status broken_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_RECORD_LOG_H_
