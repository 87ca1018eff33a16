#include "server/access/access.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/names.h"
#include "common/regular_file.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

constexpr unsigned Bit(Role role) { return static_cast<unsigned>(role); }

// Which roles may do what. docs/security.md has this table.
unsigned RolesFor(Action action) {
  switch (action) {
    case Action::kFollow:
      return Bit(Role::kServer);
    case Action::kJoin:
    case Action::kReportTrace:
      return Bit(Role::kWorker);
    // Operators measure links too (psctl doctor).
    case Action::kProbe:
      return Bit(Role::kWorker) | Bit(Role::kOperator);
    case Action::kExplain:
      return Bit(Role::kWorker) | Bit(Role::kOperator) | Bit(Role::kViewer);
    case Action::kReadOptimizer:
      return Bit(Role::kWorker) | Bit(Role::kOperator);
    case Action::kEvict:
    case Action::kReadmit:
    case Action::kCheckpoint:
    case Action::kSetLearningRate:
    case Action::kTrace:
    case Action::kDrain:
      return Bit(Role::kOperator);
    case Action::kGetStatus:
    case Action::kEvents:
    case Action::kReadClock:
    case Action::kPage:
      return Bit(Role::kOperator) | Bit(Role::kViewer);
  }
  return 0;
}

// Rules are read on a thread of gRPC, while others wait for them. A rule has about 100 bytes.
constexpr size_t kMaxTokensFileBytes = 4 << 20;

// A shorter token can be guessed: right tokens are not limited (WrongTokens).
constexpr size_t kShortestToken = 16;

// Whether the servers' token permits the action too.
bool IsForServers(Action action) { return action == Action::kFollow || action == Action::kDrain; }

std::string Describe(unsigned roles) {
  std::vector<absl::string_view> names;
  for (const Role role : {Role::kServer, Role::kWorker, Role::kOperator, Role::kViewer}) {
    if ((roles & Bit(role)) != 0) names.push_back(ToString(role));
  }
  return absl::StrJoin(names, " or ");
}

// Whether the rule is for the job. nullptr: for any job.
bool IsFor(const AccessRule& rule, const std::string* job) {
  if (job == nullptr) return true;
  // Another pattern may match the text "*" too, but is not for all jobs.
  if (*job == kAllJobs) return rule.jobs == kAllJobs;
  return MatchesPattern(rule.jobs, *job);
}

std::string Shown(const Caller& caller) {
  if (caller.names.empty()) {
    return caller.token.empty() ? "no certificate and no token" : "a token";
  }
  return absl::StrCat("a certificate of ",
                      Printable(absl::StrJoin(caller.names, ", "), kMaxNameBytes),
                      caller.token.empty() ? "" : " and a token");
}

}  // namespace

Access::Access(AccessOptions options, Journal& journal, const Clock& clock)
    : options_(std::move(options)),
      has_rules_(options_.has_certificates || !options_.tokens_file.empty()),
      server_token_hash_(HashSecret(options_.server_token)),
      journal_(journal),
      wrong_tokens_([&journal](const std::string& line) { journal.Warn(line); }, clock) {}

absl::Status Access::Load() {
  if (!options_.tokens_file.empty()) return Read().status();
  MutexLock lock(mutex_);
  rules_ =
      std::make_shared<const Rules>(options_.has_certificates ? RulesForCertificates() : Rules());
  return absl::OkStatus();
}

absl::StatusOr<bool> Access::Read() {
  const std::string& path = options_.tokens_file;
  const auto failed = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens_file=", path, ": ", why));
  };
  MutexLock reading(reading_);
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return failed(file.status().message());
  // The version is that of the open file, because another file may be moved to its place. It is
  // taken before the file is read: a file that changes meanwhile has another version afterwards.
  const FileVersion version(file->attributes());
  if (IsRead(version)) return false;
  const absl::StatusOr<std::string> text = file->Read(kMaxTokensFileBytes);
  if (!text.ok()) return failed(text.status().message());
  absl::StatusOr<Rules> rules = ParseAccessRules(*text);
  WarnIfUnsafe(file->attributes(), rules.value_or(Rules()));
  MutexLock lock(mutex_);
  version_ = version;
  if (!rules.ok()) return failed(rules.status().message());
  rules_ = std::make_shared<const Rules>(*std::move(rules));
  return true;
}

bool Access::IsRead(const FileVersion& version) const {
  MutexLock lock(mutex_);
  return version_ == version;
}

bool Access::IsBeingWritten(const FileVersion& version) const {
  const absl::Duration age = absl::Now() - version.changed;
  if (age < absl::ZeroDuration() || age >= absl::Seconds(1)) return false;
  MutexLock lock(mutex_);
  return version_.has_value() && version.device == version_->device &&
         version.inode == version_->inode;
}

void Access::WarnIfUnsafe(const struct stat& status, const Rules& rules) {
  const auto warn = [this](absl::string_view what) {
    journal_.Warn(absl::StrCat("--tokens_file=", options_.tokens_file, ": ", what));
  };
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    warn(absl::StrCat("it belongs to user ", status.st_uid, ", who can change the rules"));
  }
  if (const mode_t mode = status.st_mode; (mode & 066) != 0) {
    warn(absl::StrFormat("its mode is %04o, so that %s may %s it; make it 0600 (chmod 600)",
                         mode & 07777, (mode & 06) != 0 ? "all users" : "its group",
                         (mode & 022) != 0 ? "change" : "read"));
  }
  const auto short_tokens = std::count_if(rules.begin(), rules.end(), [](const AccessRule& rule) {
    return rule.token_bytes != 0 && rule.token_bytes < kShortestToken;
  });
  if (short_tokens > 0) {
    warn(absl::StrCat(short_tokens, " of its tokens are shorter than ", kShortestToken,
                      " bytes and can be guessed; make tokens with: openssl rand -hex 16"));
  }
}

void Access::Refresh() {
  if (options_.tokens_file.empty()) return;
  struct stat status = {};
  // While another file is moved to its place, the old rules apply.
  if (stat(options_.tokens_file.c_str(), &status) != 0) return;
  const FileVersion version(status);
  if (IsRead(version) || IsBeingWritten(version)) return;
  const absl::StatusOr<bool> read = Read();
  if (!read.ok()) {
    // A file that cannot be read is tried again at each call, in case that only descriptors or
    // memory were missing.
    if (MutexLock lock(mutex_); std::exchange(warned_, version) == version) return;
    journal_.Warn(
        absl::StrCat("the file with the tokens has changed and cannot be used, the old "
                     "rules still apply: ",
                     read.status().message()));
  } else if (*read) {
    journal_.Note("the file with the tokens has changed and was read again");
  }
}

std::shared_ptr<const Access::Rules> Access::rules() const {
  MutexLock lock(mutex_);
  return rules_;
}

bool Access::HasServerToken(const Caller& caller) const {
  // Without rules, servers that have no token admit each other.
  if (server_token_hash_.empty()) return !has_rules_ && caller.token.empty();
  return MatchesHash(server_token_hash_, caller.token);
}

Access::Decision Access::Decide(const Caller& caller, Action action, const std::string* job) const {
  if (IsForServers(action) && HasServerToken(caller)) return {.allowed = true};
  if (!has_rules_) return {.allowed = !IsForServers(action)};
  Decision decision;
  ShownSecret token(caller.token);
  const std::shared_ptr<const Rules> rules = this->rules();
  for (const AccessRule& rule : *rules) {
    bool is_caller = false;
    if (rule.token_hash.empty()) {
      is_caller =
          std::any_of(caller.names.begin(), caller.names.end(),
                      [&rule](const std::string& name) { return MatchesPattern(rule.name, name); });
    } else if (!caller.token.empty()) {
      is_caller = token.Matches(rule.token_hash);
      decision.token_is_known = decision.token_is_known || is_caller;
    }
    if (is_caller && (Bit(rule.role) & RolesFor(action)) != 0 && IsFor(rule, job)) {
      decision.allowed = true;
    }
  }
  return decision;
}

absl::Status Access::CheckFor(const Caller& caller, Action action, const std::string* job) {
  // A hash takes time in proportion to the token, for each salt in the rules.
  if (caller.token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the token has ", caller.token.size(),
                                                   " bytes; at most ", kMaxTokenBytes,
                                                   " are permitted"));
  }
  Refresh();
  if (!has_rules_) SYNCGRADS_RETURN_IF_ERROR(CheckUser(caller));
  const Decision decision = Decide(caller, action, job);
  if (decision.allowed) {
    Admitted(caller);
    return absl::OkStatus();
  }
  if (!has_rules_) {
    return Count(caller, absl::PermissionDeniedError("wrong token of the servers"));
  }
  std::string to_what;
  if (job != nullptr) {
    to_what = *job == kAllJobs ? " for all jobs"
                               : absl::StrCat(" for job \"", Printable(*job, kMaxNameBytes), "\"");
  }
  absl::Status refused =
      absl::PermissionDeniedError(absl::StrCat("this needs the role ", Describe(RolesFor(action)),
                                               to_what, "; the caller has shown ", Shown(caller)));
  return decision.token_is_known ? refused : Count(caller, std::move(refused));
}

absl::Status Access::CheckUser(const Caller& caller) const {
  if (options_.strangers == nullptr || !options_.only_own_user) return absl::OkStatus();
  const std::optional<unsigned> user = options_.strangers->OtherUserOf(caller.connection);
  if (!user.has_value()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      DescribeUser(*user), " has connected to the server of user ", geteuid(),
      ", which has no rules and serves its own user and root: start it with --tokens_file or "
      "--tls_client_ca (docs/security.md), or with --insecure to serve everybody"));
}

void Access::StreamBegan(const Caller& caller) {
  if (options_.strangers != nullptr) options_.strangers->Begin(caller.connection);
}

void Access::Admitted(const Caller& caller) {
  if (options_.strangers != nullptr) options_.strangers->Admit(caller.connection);
}

bool Access::Allows(const Caller& caller, Action action, absl::string_view job) const {
  const std::string name(job);
  return Decide(caller, action, &name).allowed;
}

absl::Status Access::Check(const Caller& caller, Action action, absl::string_view job) {
  const std::string name(job);
  return CheckFor(caller, action, &name);
}

absl::Status Access::CheckAnyJob(const Caller& caller, Action action) {
  return CheckFor(caller, action, nullptr);
}

absl::Status Access::Count(const Caller& caller, absl::Status compared) {
  if (caller.token.empty() || !absl::IsPermissionDenied(compared)) return compared;
  return wrong_tokens_.Refuse(caller.peer, std::move(compared));
}

}  // namespace syncgrads::server
