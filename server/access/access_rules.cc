#include "server/access/access_rules.h"

#include <fnmatch.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/names.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

constexpr size_t kMaxRules = 10'000;
constexpr Role kRoles[] = {Role::kServer, Role::kWorker, Role::kOperator, Role::kViewer};

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const Role role : kRoles) {
    if (name == ToString(role)) return role;
  }
  return std::nullopt;
}

// Tokens are hashed with `salt`.
absl::StatusOr<AccessRule> ParseRule(const std::vector<absl::string_view>& words,
                                     absl::string_view salt) {
  if (words.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", words.size(), " words; a rule is ROLE JOBS WHO"));
  }
  AccessRule rule;
  const std::optional<Role> role = RoleNamed(words[0]);
  if (!role.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown role \"", Printable(words[0], kMaxNameBytes),
                     "\"; roles are server, worker, operator and viewer"));
  }
  rule.role = *role;
  rule.jobs = std::string(words[1]);
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the pattern of jobs", rule.jobs));
  absl::string_view who = words[2];
  if (IsSecretHash(who)) {
    rule.token_hash = std::string(who);
  } else if (absl::ConsumePrefix(&who, "token:") && !who.empty()) {
    if (who.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the token has ", who.size(), " bytes, the maximum is ", kMaxTokenBytes));
    }
    rule.token_hash = HashSecret(who, salt);
    rule.token_bytes = who.size();
  } else if (absl::ConsumePrefix(&who, "san:") && !who.empty()) {
    rule.name = std::string(who);
  } else {
    return absl::InvalidArgumentError(
        "the third word must be token:TOKEN, sha256:SALT:DIGEST (32 and 64 hexadecimal digits) or "
        "san:PATTERN");
  }
  return rule;
}

}  // namespace

absl::string_view ToString(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
  }
  return "";
}

bool MatchesPattern(const std::string& pattern, const std::string& text) {
  // fnmatch would not see what follows a NUL byte.
  return text.find('\0') == std::string::npos &&
         fnmatch(pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
}

absl::StatusOr<std::vector<AccessRule>> ParseAccessRules(absl::string_view text) {
  const std::string salt = DrawSecret();
  std::vector<AccessRule> rules;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<AccessRule> rule =
        ParseRule(absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty()), salt);
    if (rule.ok() && rules.size() == kMaxRules) {
      rule = absl::InvalidArgumentError(absl::StrCat("there are more than ", kMaxRules, " rules"));
    }
    if (!rule.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", rule.status().message()));
    }
    rules.push_back(*std::move(rule));
  }
  return rules;
}

std::vector<AccessRule> RulesForCertificates() {
  std::vector<AccessRule> rules;
  for (const Role role : kRoles) {
    rules.push_back({role, "*", "", absl::StrCat("syncgrads:", ToString(role))});
  }
  return rules;
}

}  // namespace syncgrads::server
