#include "common/tls/tls_copies.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// Descriptors that were given up. gRPC may look at the paths of copies after their owner has ended,
// so the numbers are used for copies only.
class Spares {
 public:
  void Give(int number) {
    MutexLock lock(mutex_);
    numbers_.push_back(number);
  }
  // Returns -1 if there is none.
  int Take() {
    MutexLock lock(mutex_);
    if (numbers_.empty()) return -1;
    const int number = numbers_.back();
    numbers_.pop_back();
    return number;
  }

 private:
  Mutex mutex_;
  std::vector<int> numbers_ ABSL_GUARDED_BY(mutex_);
};

Spares& TheSpares() {
  static Spares& spares = *new Spares;
  return spares;
}

// Returns a new file in memory, which only this user may read.
absl::StatusOr<FileDescriptor> FileWith(const std::string& text) {
  FileDescriptor file(memfd_create("syncgrads-tls", MFD_CLOEXEC));
  bool is_written = file.valid() && fchmod(file.get(), S_IRUSR) == 0;
  for (size_t at = 0; is_written && at < text.size();) {
    const ssize_t bytes = write(file.get(), text.data() + at, text.size() - at);
    if (bytes > 0) at += static_cast<size_t>(bytes);
    is_written = bytes > 0 || errno == EINTR;
  }
  if (is_written) return file;
  return absl::ResourceExhaustedError(
      absl::StrCat("the TLS files cannot be copied to memory: ", std::strerror(errno)));
}

// Lets `number` be `file`; if it is -1, sets it.
absl::Status Replace(FileDescriptor file, int& number) {
  if (number < 0) number = TheSpares().Take();
  if (number < 0) {
    number = file.Release();
    return absl::OkStatus();
  }
  if (dup3(file.get(), number, O_CLOEXEC) >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the TLS files cannot be copied to memory: ", std::strerror(errno)));
}

std::string PathOf(int number) { return absl::StrCat("/proc/self/fd/", number); }

}  // namespace

TlsCopies::TlsCopies(TlsOptions tls, TlsSide side, std::function<void(const std::string&)> warn)
    : files_(std::move(tls)), side_(side), warn_(std::move(warn)), options_(files_) {
  if (files_.empty()) return;
  copied_ = warned_ = VersionsNow();
  absl::Status copied = Copy();
  if (copied.ok() && access(PathOf(ca_).c_str(), R_OK) != 0) {
    copied = absl::UnavailableError(absl::StrCat(PathOf(ca_), ": ", std::strerror(errno)));
  }
  if (!copied.ok()) {
    warn_(absl::StrCat(copied.message(), "; changed TLS files will be used whatever they contain"));
    return;
  }
  if (!files_.certificate.empty()) options_.certificate = options_.key = PathOf(pair_);
  if (!files_.ca.empty()) options_.ca = PathOf(ca_);
  if (!files_.client_ca.empty()) options_.client_ca = PathOf(client_ca_);
  options_.refresh = absl::Seconds(1);
  thread_ = std::thread([this] { Watch(); });
}

TlsCopies::~TlsCopies() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  for (int number : {pair_, ca_, client_ca_}) {
    if (number < 0) continue;
    if (ftruncate(number, 0) == 0) TheSpares().Give(number);
  }
}

absl::Status TlsCopies::Copy() {
  SYNCGRADS_ASSIGN_OR_RETURN(const TlsTexts texts, ReadTls(files_, side_));
  SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor pair,
                             FileWith(absl::StrCat(texts.certificate, "\n", texts.key)));
  SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor ca, FileWith(texts.ca));
  SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor client_ca, FileWith(texts.client_ca));
  SYNCGRADS_RETURN_IF_ERROR(Replace(std::move(pair), pair_));
  SYNCGRADS_RETURN_IF_ERROR(Replace(std::move(ca), ca_));
  return Replace(std::move(client_ca), client_ca_);
}

void TlsCopies::Watch() {
  while (true) {
    {
      MutexLock lock(mutex_);
      const absl::Time next = MonotonicNow() + files_.refresh;
      while (!stopping_ && MonotonicNow() < next) changed_.WaitUntil(mutex_, next);
      if (stopping_) return;
    }
    // Taken before the files are read: if one changes meanwhile, it is read again.
    const Versions now = VersionsNow();
    if (now == copied_) continue;
    const absl::Status copied = Copy();
    if (copied.ok()) copied_ = now;
    if (copied.ok() || now == warned_) continue;
    warned_ = now;
    warn_(absl::StrCat(copied.message(), "; the files that were read before stay in use"));
  }
}

TlsCopies::Versions TlsCopies::VersionsNow() const {
  return {FileVersion::At(files_.certificate), FileVersion::At(files_.key),
          FileVersion::At(files_.ca), FileVersion::At(files_.client_ca)};
}

}  // namespace syncgrads
