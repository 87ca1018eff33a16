// The file --tokens_file: who has which role for which jobs. One rule on each line:
//
//   ROLE      JOBS      WHO
//   server    *         san:syncgrads:server
//   worker    resnet-*  token:5f0c...           the token itself
//   operator  *         sha256:SALT:DIGEST      only the token's hash; see HashSecret
//   viewer    *         san:*.ops.example.org
//
// JOBS is a pattern of names of jobs, and what follows "san:" is a pattern of names in
// certificates: DNS names, URIs and e-mail addresses. In patterns, * stands for any text and ? for
// any character. JOBS is for actions that concern all jobs only if it is exactly *. Empty lines,
// and lines that begin with #, are ignored.

#ifndef SYNCGRADS_SERVER_ACCESS_ACCESS_RULES_H_
#define SYNCGRADS_SERVER_ACCESS_ACCESS_RULES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncgrads::server {

enum class Role : uint8_t {
  kServer = 1,    // may be one of the servers
  kWorker = 2,    // may open and join jobs
  kOperator = 4,  // may see and change jobs
  kViewer = 8,    // may see jobs
};

absl::string_view ToString(Role role);

struct AccessRule {
  Role role = Role::kViewer;
  std::string jobs;
  // Exactly one of these is set: the hash of a token, or a pattern.
  std::string token_hash;
  std::string name;
  // The length of the token; 0 if the file has only its hash.
  size_t token_bytes = 0;
};

// Returns whether the pattern matches the whole text. A text with a NUL byte matches nothing.
bool MatchesPattern(const std::string& pattern, const std::string& text);

// Returns the rules in the text of a file. Tokens in it are hashed.
//
// Errors:
//   InvalidArgument  a line is malformed, or there are more than 10,000; the message has the line's
//                    number, and never a token
absl::StatusOr<std::vector<AccessRule>> ParseAccessRules(absl::string_view text);

// The rules of servers with a client CA and without a file: the URIs syncgrads:server,
// syncgrads:worker, syncgrads:operator and syncgrads:viewer in a certificate, for all jobs.
std::vector<AccessRule> RulesForCertificates();

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_ACCESS_ACCESS_RULES_H_
