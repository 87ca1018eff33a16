// Parses arbitrary bytes as the file of tokens, and asks what the rules in it allow. The first
// bytes of an input are a job's name and a name in a certificate.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/secret.h"
#include "server/access/access.h"
#include "server/access/access_rules.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace syncgrads::fuzz {
namespace {

using server::Access;
using server::AccessRule;
using server::Action;

// Ignores everything.
class NoJournal : public server::Journal {
 public:
  void Debug(const std::string&) override {}
  void Note(const std::string&) override {}
  void Warn(const std::string&) override {}
};

std::string InputOf(absl::string_view job, absl::string_view name, absl::string_view file) {
  return absl::StrCat(Encoded(job.size(), 1), job, Encoded(name.size(), 1), name, file);
}

}  // namespace

void Fuzz(absl::string_view input) {
  static const ScratchDirectory scratch;
  Choices choices(input);
  const std::string job(choices.Take(choices.Byte()));
  const std::string name(choices.Take(choices.Byte()));
  const absl::string_view file = choices.Rest();
  const absl::StatusOr<std::vector<AccessRule>> rules = server::ParseAccessRules(file);
  RequireExplained(rules.status());
  scratch.Write("tokens", file);
  NoJournal journal;
  Access access({.tokens_file = scratch.PathOf("tokens")}, journal, Clock::Real());
  Require(access.Load().ok() == rules.ok(), "the file is valid exactly if its rules are");
  if (!rules.ok()) return;
  bool has_name = false;
  bool has_any = false;
  for (const AccessRule& rule : *rules) {
    Require(rule.token_hash.empty() != rule.name.empty(), "a rule has a token or a name");
    Require(rule.token_hash.empty() || IsSecretHash(rule.token_hash), "a token is hashed");
    const bool matches = !rule.name.empty() && server::MatchesPattern(rule.name, name);
    has_any = has_any || matches;
    has_name = has_name || (matches && server::MatchesPattern(rule.jobs, job));
  }
  for (int number = 0; number <= static_cast<int>(Action::kPage); ++number) {
    const Action action = static_cast<Action>(number);
    Require(!access.Check({.peer = "1.2.3.4"}, action, job).ok(),
            "a caller without a certificate and a token may do nothing");
    Require(!access.CheckAnyJob({.peer = "1.2.3.4"}, action).ok(),
            "a caller without a certificate and a token may do nothing to any job");
    const server::Caller caller = {.peer = "1.2.3.4", .names = {name}};
    Require(has_name || !access.Allows(caller, action, job), "only a rule allows an action");
    Require(has_any || !access.CheckAnyJob(caller, action).ok(),
            "only a rule allows an action on some job");
  }
}

std::vector<std::string> Seeds() {
  return {
      InputOf("resnet-5", "a.ops.example.org",
              "# ROLE    JOBS       WHO\n"
              "server    *          san:syncgrads:server\n"
              "worker    resnet-*   token:0c1f2a\n"
              "viewer    *          san:*.ops.example.org\n"),
      InputOf("iris", "syncgrads:operator",
              absl::StrCat("operator\t*\tsha256:", std::string(32, '0'), ":", std::string(64, 'f'),
                           "\r\n\nviewer i?i[a-s] san:syncgrads:*\n")),
      InputOf("", "", ""),
  };
}

}  // namespace syncgrads::fuzz
