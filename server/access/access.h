// Decides who may do what. Every RPC and every HTTP page asks here.
//
// A server without certificates and without --tokens_file has no rules: whoever reaches it may do
// everything, except that a job's token protects that job, and the servers' token the plan. With
// rules, the tokens of jobs are not used any more.

#ifndef SYNCGRADS_SERVER_ACCESS_ACCESS_H_
#define SYNCGRADS_SERVER_ACCESS_ACCESS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_version.h"
#include "common/mutex.h"
#include "common/net/strangers.h"
#include "common/net/wrong_tokens.h"
#include "server/access/access_rules.h"
#include "server/core/plan/journal.h"

namespace syncgrads::server {

enum class Action {
  kFollow,
  kJoin,
  kProbe,
  kReportTrace,
  kExplain,
  kReadOptimizer,
  kEvict,
  kReadmit,
  kCheckpoint,
  kSetLearningRate,
  kTrace,
  kDrain,
  kGetStatus,
  kEvents,
  kReadClock,
  kPage,
};

// Who calls.
struct Caller {
  // The address without the port and without brackets; "unix" for a process of this host and of the
  // server's user.
  std::string peer;
  // The names in the caller's certificate, which has been verified. Those with control characters
  // are left out.
  std::vector<std::string> names;
  // Empty: none was sent.
  std::string token;
  // The address and the port (EndpointOfPeer); empty for a caller over HTTP.
  std::string connection = {};
};

// All jobs, for actions that concern more than one.
inline constexpr absl::string_view kAllJobs = "*";

struct AccessOptions {
  // The path of the file with the rules. Empty: none.
  std::string tokens_file;
  // Whether peers need certificates. Without a file, RulesForCertificates are used.
  bool has_certificates = false;
  // The secret of the servers; empty: none.
  std::string server_token;
  // Told about connections that are admitted to something. Null: there are none.
  Strangers* strangers = nullptr;
  // Without rules, connections of other users of this host are admitted to nothing.
  bool only_own_user = false;
};

// Thread-safe.
class Access {
 public:
  // `journal` and `clock` must outlive this object. Call Load before all else.
  Access(AccessOptions options, Journal& journal, const Clock& clock);

  // Reads the file.
  //
  // Errors:
  //   InvalidArgument  the file cannot be read or is malformed
  absl::Status Load();

  bool has_rules() const { return has_rules_; }

  // Decides whether the caller may do this to the job, or to kAllJobs. If the file has changed, it
  // is read first; a file that is not valid is logged, and the rules stay as they are.
  //
  // Errors:
  //   InvalidArgument   the token is longer than kMaxTokenBytes
  //   PermissionDenied  the caller may not; the message has the role that is needed, and what the
  //                     caller has shown
  //   Unavailable       the caller may not, the token is wrong, and too many wrong tokens have come
  //                     from this address; retry later
  absl::Status Check(const Caller& caller, Action action, absl::string_view job);

  // The same for an action that shows the caller only the jobs for which Allows is true: succeeds
  // if the caller has a role that may do this to some jobs.
  absl::Status CheckAnyJob(const Caller& caller, Action action);

  // A stream of a caller has begun, for which Check was not called yet.
  void StreamBegan(const Caller& caller);
  // A caller was admitted without Check.
  void Admitted(const Caller& caller);

  // Whether Check would succeed. Neither logs nor counts.
  bool Allows(const Caller& caller, Action action, absl::string_view job) const;

  // Counts and logs a token that was compared elsewhere and is wrong, if `compared` is
  // PermissionDenied and the caller has shown a token. Returns `compared`, or Unavailable if too
  // many wrong tokens have come from this address. Check includes it.
  absl::Status Count(const Caller& caller, absl::Status compared);

  // The number of wrong tokens since the start.
  uint64_t wrong_tokens() const { return wrong_tokens_.count(); }

 private:
  using Rules = std::vector<AccessRule>;

  // PermissionDenied if the caller is another user, and only the own one is served.
  absl::Status CheckUser(const Caller& caller) const;

  std::shared_ptr<const Rules> rules() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the file if it has changed.
  void Refresh() ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Reads the file. Returns false if another thread has read this version of it meanwhile.
  absl::StatusOr<bool> Read() ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  bool IsRead(const FileVersion& version) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the file that was read last was changed within the last second, by who writes it in
  // place: half of it may be missing.
  bool IsBeingWritten(const FileVersion& version) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs what is unsafe about the file: who may read or replace its content, and tokens that can be
  // guessed.
  void WarnIfUnsafe(const struct stat& status, const Rules& rules);
  bool HasServerToken(const Caller& caller) const;
  absl::Status CheckFor(const Caller& caller, Action action, const std::string* job);
  struct Decision {
    bool allowed = false;
    // A rule has the caller's token, for whatever role and job.
    bool token_is_known = false;
  };
  // If `job` is null, for any job.
  Decision Decide(const Caller& caller, Action action, const std::string* job) const;

  const AccessOptions options_;
  const bool has_rules_;
  // The hash of the servers' token.
  const std::string server_token_hash_;
  Journal& journal_;
  WrongTokens wrong_tokens_;

  // Held while the file is read and its rules are stored, so that rules are stored in the order in
  // which they were read. Taken before `mutex_`.
  Mutex reading_;
  mutable Mutex mutex_;
  std::shared_ptr<const Rules> rules_ ABSL_GUARDED_BY(mutex_);
  // The version that was read last. If its rules could be used, they are `rules_`.
  std::optional<FileVersion> version_ ABSL_GUARDED_BY(mutex_);
  // The version about which it was logged last that it cannot be used.
  std::optional<FileVersion> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_ACCESS_ACCESS_H_
