#include "server/core/membership/job_identity.h"

#include "absl/strings/str_cat.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

JobTerms TermsOf(const Hello& hello) {
  return {hello.world_size, hello.max_workers, hello.min_workers, hello.step_timeout};
}

JobIdentity::JobIdentity(const Hello& first, Generation generation, bool restored)
    : name_(first.job),
      token_hash_(restored && IsSecretHash(first.token) ? first.token : HashSecret(first.token)),
      generation_(generation),
      terms_(TermsOf(first)) {}

std::string JobIdentity::Quoted() const { return absl::StrCat("job \"", name_, "\""); }

bool JobIdentity::HasToken(absl::string_view token) const {
  return MatchesHash(token_hash_, token);
}

absl::Status JobIdentity::CheckToken(absl::string_view token) const {
  if (HasToken(token)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("wrong token for ", Quoted()));
}

absl::Status JobIdentity::CheckTerms(const Hello& hello) const {
  if (hello.generation != Generation{} && hello.generation != generation_) {
    return absl::FailedPreconditionError(absl::StrCat("generation ", ToNumber(hello.generation),
                                                      " of ", Quoted(), " is not the current one, ",
                                                      ToNumber(generation_), "; rejoin"));
  }
  if (hello.world_size != terms_.world_size) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(), " has ", terms_.world_size,
                                                      " workers, this one was started for ",
                                                      hello.world_size));
  }
  const JobTerms terms = TermsOf(hello);
  if (!(terms == terms_)) {
    const auto describe = [](const JobTerms& terms) {
      return absl::StrCat("min_workers ", terms.min_workers, ", max_workers ", terms.max_workers,
                          " and step_timeout ", Seconds(terms.step_timeout));
    };
    return absl::FailedPreconditionError(absl::StrCat(
        Quoted(), " has ", describe(terms_), ", this worker was started with ", describe(terms)));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
