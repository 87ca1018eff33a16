// Whole files, read and written.

#ifndef SYNCGRADS_WORKER_BASE_FILE_H_
#define SYNCGRADS_WORKER_BASE_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncgrads {

// `path`, unless it is relative; then it is taken from `directory`.
std::string PathFrom(absl::string_view directory, absl::string_view path);

// The directory that `path` lies in; "." if it names none.
std::string DirectoryOf(absl::string_view path);

bool IsDirectory(const std::string& path);

// Errors:
//   NotFound            there is no such file
//   PermissionDenied    it may not be read
//   InvalidArgument     it is a directory, or longer than `max_bytes`
//   Internal            any other error of the system, in its words
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Writes the pieces, one after the other, as the file `path`: whoever reads it
// finds the old contents or all of the new, also after a crash.
//
// Errors:
//   NotFound            the directory does not exist
//   PermissionDenied    it may not be written
//   ResourceExhausted   the disk is full, or files may not be so long
//   Internal            any other error of the system, in its words
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces);

// The same, but a crash of the machine may leave the file damaged; it is quicker.
absl::Status ReplaceFile(const std::string& path, absl::Span<const absl::string_view> pieces);

// Makes what was renamed, made or removed in `directory` outlast a crash of the
// machine. Errors: NotFound, PermissionDenied, Internal, as above.
absl::Status SyncDirectory(const std::string& directory);

// "steps.jsonl" and "worker2" become "steps.worker2.jsonl"; no path stays none.
std::string WithSuffix(const std::string& path, const std::string& suffix);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_FILE_H_
