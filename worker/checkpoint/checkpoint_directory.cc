#include "worker/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kDamaged = ".damaged";
// An upper bound: a manifest lists a few files, whatever the size of the model.
constexpr size_t kMaxManifestBytes = 16 << 20;

absl::Status SystemError(absl::string_view what, const std::string& path,
                         const std::error_code& error) {
  const std::string message = absl::StrCat("cannot ", what, " ", path, ": ", error.message());
  if (error == std::errc::permission_denied || error == std::errc::operation_not_permitted ||
      error == std::errc::read_only_file_system) {
    return absl::PermissionDeniedError(message);
  }
  if (error == std::errc::no_space_on_device) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

// Whether the file system lacks an operation.
bool IsUnsupported(const std::error_code& error) {
  return error == std::errc::function_not_supported || error == std::errc::operation_not_supported;
}

std::string ManifestOf(const std::string& checkpoint) {
  return absl::StrCat(checkpoint, "/", kManifest);
}

// Returns true also if the system does not permit to find out, so that ReadNewest reports the fault
// and RemoveUnfinished removes nothing.
bool IsComplete(const std::string& checkpoint) {
  std::error_code error;
  return fs::symlink_status(ManifestOf(checkpoint), error).type() != fs::file_type::not_found;
}

// Reads a file of a checkpoint. Errors: ResourceExhausted if there is no descriptor or memory for
// it now; otherwise DataLoss, whatever the reason: an earlier checkpoint can be used instead.
absl::StatusOr<std::string> ReadPart(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> contents = ReadRegularFile(path, max_bytes);
  if (contents.ok() || absl::IsResourceExhausted(contents.status())) return contents;
  return absl::DataLossError(contents.status().message());
}

// "step-000000000120" -> 120.
std::optional<uint64_t> StepOf(absl::string_view name) {
  uint64_t step = 0;
  if (!absl::ConsumePrefix(&name, "step-") || !absl::SimpleAtoi(name, &step)) return std::nullopt;
  return step;
}

// Returns the steps of all checkpoint directories, ascending: of those with a manifest if
// `complete`, otherwise of those without one.
absl::StatusOr<std::vector<uint64_t>> FindSteps(const std::string& directory, bool complete) {
  std::vector<uint64_t> steps;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory) return steps;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::optional<uint64_t> step = StepOf(entries->path().filename().string());
    if (step.has_value() && IsComplete(entries->path().string()) == complete) {
      steps.push_back(*step);
    }
  }
  if (error) return SystemError("read", directory, error);
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Removes the manifest first, so that a partly removed directory is not a checkpoint.
absl::Status Remove(const std::string& checkpoint) {
  if (IsComplete(checkpoint)) {
    std::error_code error;
    fs::remove(ManifestOf(checkpoint), error);
    if (error) return SystemError("remove", ManifestOf(checkpoint), error);
    SYNCGRADS_RETURN_IF_ERROR(SyncDirectory(checkpoint));
  }
  std::error_code error;
  fs::remove_all(checkpoint, error);
  return error ? SystemError("remove", checkpoint, error) : absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? SystemError("create", path, error) : absl::OkStatus();
}

// Makes `directory`/`name` a symbolic link to the checkpoint `to`, which is in the same
// directory. Replaces an existing link atomically. Does nothing if the file system has no symbolic
// links.
absl::Status Link(const std::string& directory, const std::string& name, const std::string& to) {
  const std::string temporary = absl::StrCat(directory, "/.", name);
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(fs::path(to).filename(), temporary, error);
  if (error == std::errc::operation_not_permitted || IsUnsupported(error)) return absl::OkStatus();
  if (!error) fs::rename(temporary, absl::StrCat(directory, "/", name), error);
  return error ? SystemError("link", absl::StrCat(directory, "/", name), error) : absl::OkStatus();
}

// An exclusive file lock (flock) on a directory, held until this object is destroyed. If the file
// system has no locks, nothing is locked.
class WriterLock {
 public:
  static absl::StatusOr<WriterLock> Take(const std::string& directory) {
    const std::string path = absl::StrCat(directory, "/lock");
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return SystemError("open", path, std::error_code(errno, std::generic_category()));
    WriterLock lock(file);
    if (flock(file, LOCK_EX | LOCK_NB) == 0) return lock;
    const std::error_code error(errno, std::generic_category());
    if (error == std::errc::no_lock_available || IsUnsupported(error)) return lock;
    if (error != std::errc::operation_would_block) return SystemError("lock", path, error);
    return absl::UnavailableError(absl::StrCat("another process is writing a checkpoint to ",
                                               directory, " (it has locked ", path,
                                               "): each job needs its own checkpoint directory"));
  }
  WriterLock(WriterLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  ~WriterLock() {
    if (file_ >= 0) close(file_);
  }

 private:
  explicit WriterLock(int file) : file_(file) {}
  int file_;
};

}  // namespace

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string json, ReadPart(ManifestOf(path), kMaxManifestBytes));
  SYNCGRADS_ASSIGN_OR_RETURN(checkpoint.manifest, ParseManifest(json, ManifestOf(path)));
  for (const ManifestFile& file : checkpoint.manifest.files) {
    const std::string file_path = absl::StrCat(path, "/", file.name);
    SYNCGRADS_ASSIGN_OR_RETURN(std::string contents,
                               ReadPart(file_path, std::numeric_limits<size_t>::max()));
    if (contents.size() != file.bytes) {
      return absl::DataLossError(absl::StrCat(file_path, " has ", contents.size(),
                                              " bytes, but its manifest records ", file.bytes));
    }
    const uint64_t checksum = ChecksumOf({contents});
    if (checksum != file.checksum) {
      return absl::DataLossError(
          absl::StrCat(file_path, " has checksum ", absl::Hex(checksum, absl::kZeroPad16),
                       ", but its manifest records ", absl::Hex(file.checksum, absl::kZeroPad16)));
    }
    checkpoint.files[file.name] = std::move(contents);
  }
  return checkpoint;
}

std::string CheckpointDirectory::PathOf(uint64_t step) const {
  return absl::StrFormat("%s/step-%012d", options_.path, step);
}

absl::StatusOr<std::vector<uint64_t>> CheckpointDirectory::Steps() const {
  return FindSteps(options_.path, /*complete=*/true);
}

absl::StatusOr<std::string> CheckpointDirectory::Write(Manifest manifest,
                                                       absl::Span<const CheckpointFile> files) {
  SYNCGRADS_RETURN_IF_ERROR(MakeDirectories(options_.path));
  SYNCGRADS_ASSIGN_OR_RETURN(const WriterLock lock, WriterLock::Take(options_.path));
  SYNCGRADS_RETURN_IF_ERROR(RemoveUnfinished());
  const std::string path = PathOf(manifest.step);
  SYNCGRADS_RETURN_IF_ERROR(Remove(path));
  const absl::Status written = WriteFiles(path, manifest, files);
  if (!written.ok()) {
    // Removes the incomplete checkpoint, so that it does not fill a disk that may be
    // full.
    Remove(path).IgnoreError();
    return written;
  }
  SYNCGRADS_RETURN_IF_ERROR(Prune(manifest));
  return path;
}

absl::Status CheckpointDirectory::WriteFiles(const std::string& path, Manifest& manifest,
                                             absl::Span<const CheckpointFile> files) const {
  SYNCGRADS_RETURN_IF_ERROR(MakeDirectories(path));
  manifest.files.clear();
  for (const CheckpointFile& file : files) {
    ManifestFile& described = manifest.files.emplace_back();
    described.name = file.name;
    for (const absl::string_view piece : file.pieces) described.bytes += piece.size();
    described.checksum = ChecksumOf(file.pieces);
    SYNCGRADS_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(path, "/", file.name), file.pieces));
  }
  SYNCGRADS_RETURN_IF_ERROR(SyncDirectory(options_.path));
  return WriteFileAtomically(ManifestOf(path), {ToJson(manifest)});
}

absl::Status CheckpointDirectory::Prune(const Manifest& newest) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, Steps());
  std::optional<uint64_t> best;
  std::pair<bool, double> best_score;
  for (const uint64_t step : steps) {
    if (!options_.keep_best) break;
    const std::string path = ManifestOf(PathOf(step));
    const absl::StatusOr<std::string> json = ReadPart(path, kMaxManifestBytes);
    const absl::StatusOr<Manifest> manifest =
        json.ok() ? ParseManifest(*json, path) : json.status();
    // Ignores a damaged manifest; ReadNewest reports it.
    if (!manifest.ok() || !manifest->score.has_value()) continue;
    const bool is_comparable = manifest->best.empty() || manifest->best == newest.best;
    const std::pair<bool, double> score = {is_comparable, *manifest->score};
    if (best.has_value() && score <= best_score) continue;
    best = step;
    best_score = score;
  }
  absl::Status status = Link(options_.path, "latest", PathOf(newest.step));
  if (best.has_value()) status.Update(Link(options_.path, "best", PathOf(*best)));
  for (size_t i = 0; i + options_.keep < steps.size(); ++i) {
    if (steps[i] != best && steps[i] != newest.step) status.Update(Remove(PathOf(steps[i])));
  }
  return status;
}

absl::Status CheckpointDirectory::RemoveUnfinished() const {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps,
                             FindSteps(options_.path, /*complete=*/false));
  for (const uint64_t step : steps) SYNCGRADS_RETURN_IF_ERROR(Remove(PathOf(step)));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Checkpoint>> CheckpointDirectory::ReadNewest(
    const std::function<void(const absl::Status&)>& warn) const {
  SYNCGRADS_ASSIGN_OR_RETURN(std::vector<uint64_t> steps, Steps());
  for (; !steps.empty(); steps.pop_back()) {
    const std::string path = PathOf(steps.back());
    absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(path);
    if (checkpoint.ok()) return std::optional<Checkpoint>(*std::move(checkpoint));
    if (!absl::IsDataLoss(checkpoint.status())) return checkpoint.status();
    warn(checkpoint.status());
    // Sets the directory aside: a later checkpoint can use its name, and the damaged
    // files stay available for diagnosis.
    const std::string aside = path + kDamaged;
    std::error_code error;
    fs::remove_all(aside, error);
    fs::rename(path, aside, error);
    if (error) warn(SystemError("rename", path, error));
  }
  return std::optional<Checkpoint>();
}

}  // namespace syncgrads
