// Reads a job file (proto/job.proto) and rejects a job that cannot be trained.

#ifndef SYNCGRADS_WORKER_JOB_JOB_FILE_H_
#define SYNCGRADS_WORKER_JOB_JOB_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/data/row_source.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// A job that has passed every check that needs no data. Defaults for dtype,
// optimizer_placement and layer names are set, and a named model is replaced by its layers.
struct Job {
  v1::JobFile file;
  // The paths in the file are relative to this directory.
  std::string directory;
  // The storage of the data's files. Null: they are in `directory`.
  std::shared_ptr<const Storage> storage;
  // The storage of the files of validation.data. Null: they are in `directory`.
  std::shared_ptr<const Storage> validation_storage;
  // Custom readers for data.custom. Must outlive the job.
  const CustomReaders* readers = &NoCustomReaders();
  // The processes that serve the data. Null: this process reads the data itself.
  std::shared_ptr<const DataHost> data_host;
};

// Parses `text` as a job file. `path` is its name in errors.
//
// Errors:
//   InvalidArgument  "PATH:LINE:COLUMN: what is wrong": an unknown field, or a value that is
//                    missing, out of range or of the wrong type; names the field and its value.
//                    The place is that of the field or, if it is missing, of the innermost
//                    message around it
absl::StatusOr<Job> ParseJobFile(absl::string_view text, const std::string& path);

// Reads and parses the file `path`. Errors: those of ReadFile and ParseJobFile.
absl::StatusOr<Job> LoadJobFile(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_JOB_FILE_H_
