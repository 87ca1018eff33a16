// The identity of one job, and the terms that all its workers must agree on.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_IDENTITY_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/signals/signals.h"

namespace syncgrads::server {

// The terms that all workers of a job must agree on; see Hello.
struct JobTerms {
  uint32_t world_size = 0;
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  absl::Duration step_timeout;

  friend bool operator==(const JobTerms&, const JobTerms&) = default;
};

JobTerms TermsOf(const Hello& hello);

// Immutable, and so thread-safe. Owned by a CoordinatedJob; its parts refer to it.
class JobIdentity {
 public:
  // `first` is the hello of the job's first worker. `restored`: it was stored, so that its token is
  // a hash (or, if an earlier version has stored it, the token itself).
  JobIdentity(const Hello& first, Generation generation, bool restored = false);
  JobIdentity(const JobIdentity&) = delete;
  JobIdentity& operator=(const JobIdentity&) = delete;

  const std::string& name() const { return name_; }
  const std::string& token_hash() const { return token_hash_; }
  Generation generation() const { return generation_; }
  const JobTerms& terms() const { return terms_; }
  bool is_elastic() const { return terms_.max_workers > 0; }
  // The largest number of members.
  uint32_t most_workers() const { return is_elastic() ? terms_.max_workers : terms_.world_size; }

  // `job "NAME"`, for messages.
  std::string Quoted() const;

  bool HasToken(absl::string_view token) const;
  // PermissionDenied if this is not the job's token.
  absl::Status CheckToken(absl::string_view token) const;
  // Whether the worker has the generation and the terms of the job.
  //
  // Errors:
  //   FailedPrecondition  the generation or the terms differ
  absl::Status CheckTerms(const Hello& hello) const;

 private:
  const std::string name_;
  const std::string token_hash_;
  const Generation generation_;
  const JobTerms terms_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_JOB_IDENTITY_H_
