// Reads a job file (proto/job.proto) and refuses what cannot be trained.

#ifndef SYNCGRADS_WORKER_JOB_JOB_FILE_H_
#define SYNCGRADS_WORKER_JOB_JOB_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "worker/data/custom_readers.h"
#include "worker/data/served_rows.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// A job that has passed every check that needs no data. dtype, place, the names of
// the layers and the layers of a named model are filled in.
struct Job {
  v1::JobFile file;
  // Paths in the file are relative to it.
  std::string directory;
  // Where the files of the data lie, if that is not `directory`.
  std::shared_ptr<const Storage> storage;
  // Of one's own, that data.custom can name; outlives the job.
  const CustomReaders* readers = &NoCustomReaders();
  // Who has read the data, if this worker does not read it itself.
  std::shared_ptr<const DataHost> data_host;
};

// Reads `text` as a job file; `path` is what errors call it.
//
// Errors:
//   InvalidArgument  "PATH:LINE:COLUMN: what is wrong": an unknown field, a value
//                    of the wrong type or out of range, a value that is missing;
//                    names the field and its value. The place is that of the
//                    field, or of the innermost field around a missing one.
absl::StatusOr<Job> ParseJobFile(absl::string_view text, const std::string& path);

// Errors: as ParseJobFile, and as ReadFile if it cannot be read.
absl::StatusOr<Job> LoadJobFile(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_JOB_FILE_H_
