// Reads and writes whole files.

#ifndef SYNCGRADS_WORKER_BASE_FILE_H_
#define SYNCGRADS_WORKER_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace syncgrads {

// Returns `path` relative to `directory`. Returns `path` itself if it is absolute or `directory`
// is empty.
std::string PathFrom(absl::string_view directory, absl::string_view path);

// Returns the directory of `path`; "." if it has none.
std::string DirectoryOf(absl::string_view path);

bool IsDirectory(const std::string& path);

// How long ReadFile waits for each piece of a pipe.
inline constexpr absl::Duration kPipeTimeout = absl::Seconds(10);

// Reads a whole file, or what comes from a pipe until it is closed.
//
// Errors:
//   NotFound           there is no such file
//   PermissionDenied   reading it is not permitted
//   InvalidArgument    it is a directory, or longer than `max_bytes`
//   DeadlineExceeded   it is a pipe, and nothing was written to it for `pipe_timeout`
//   ResourceExhausted  there is no file descriptor, or no memory
//   Internal           any other error of the system, with its message
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes,
                                     absl::Duration pipe_timeout = kPipeTimeout);

// Reads a whole file as ReadFile does, but only a regular file, and never waits. Errors: those of
// ReadFile, and InvalidArgument if it is not a regular file.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// Reads the `size` bytes of a file from `offset` on; fewer if it ends before. Errors: those of
// ReadFile.
absl::StatusOr<std::string> ReadFileRange(const std::string& path, uint64_t offset, size_t size);

// Writes the pieces, one after the other, to the file `path`. Atomic: a reader finds the old
// contents or all of the new, also after a crash of the machine. The permissions of the file are
// those that the process's umask allows, also if it replaces one with others.
//
// Errors:
//   NotFound           the directory does not exist
//   PermissionDenied   writing is not permitted
//   InvalidArgument    `path` is a directory
//   ResourceExhausted  the disk is full, or the file is longer than the system allows
//   Internal           any other error of the system, with its message
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces);

// Returns OK if WriteFileAtomically can create a file in the place of `path` now: creates an empty
// temporary file beside it, and removes it. Errors: those of WriteFileAtomically.
absl::Status CheckWritable(const std::string& path);

// Writes a file as WriteFileAtomically does, but without syncing it. It is faster, but after a
// crash of the machine the file may be damaged. Errors: those of WriteFileAtomically.
absl::Status ReplaceFile(const std::string& path, absl::Span<const absl::string_view> pieces);

// Syncs `directory`, so that files renamed, created or removed in it stay so after a crash of
// the machine. Errors: NotFound, PermissionDenied, Internal, as for WriteFileAtomically.
absl::Status SyncDirectory(const std::string& directory);

// Inserts `suffix` before the extension: "steps.jsonl" and "worker2" become
// "steps.worker2.jsonl". An empty path stays empty.
std::string WithSuffix(const std::string& path, const std::string& suffix);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_FILE_H_
