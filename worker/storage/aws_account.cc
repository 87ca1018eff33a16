#include "worker/storage/aws_account.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/base/file.h"

namespace syncgrads {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

using Settings = std::map<std::string, std::string>;

std::string Get(const GetEnv& getenv, const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string Get(const Settings& settings, const std::string& name) {
  const auto it = settings.find(name);
  return it == settings.end() ? "" : it->second;
}

// Returns the path in the environment variable `variable`, or else that of a file in ~/.aws.
std::string FileNamed(const GetEnv& getenv, const char* variable, absl::string_view usual) {
  const std::string named = Get(getenv, variable);
  return named.empty() ? absl::StrCat(Get(getenv, "HOME"), "/.aws/", usual) : named;
}

// Returns the settings of one section: lines "name = value" after "[SECTION]". There are none if
// the file does not exist. Skips indented lines, which belong to nested settings.
absl::StatusOr<Settings> ReadSection(const std::string& path, absl::string_view section) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return Settings();
  SYNCGRADS_RETURN_IF_ERROR(text.status());
  Settings settings;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (line.empty() || absl::ascii_isspace(line[0]) || line[0] == '#' || line[0] == ';') continue;
    line = absl::StripAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "[")) {
      absl::ConsumeSuffix(&line, "]");
      inside = absl::StripAsciiWhitespace(line) == section;
      continue;
    }
    const size_t equals = line.find('=');
    if (!inside || equals == absl::string_view::npos) continue;
    settings.emplace(absl::AsciiStrToLower(absl::StripAsciiWhitespace(line.substr(0, equals))),
                     absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }
  return settings;
}

absl::StatusOr<AwsCredentials> CheckWhole(AwsCredentials credentials, absl::string_view place) {
  if (credentials.access_key.empty() == credentials.secret_key.empty()) return credentials;
  return absl::InvalidArgumentError(absl::StrCat(place, " has ",
                                                 credentials.access_key.empty()
                                                     ? "a secret key but no access key ID"
                                                     : "an access key ID but no secret key"));
}

std::string ProfileOf(const std::string& given, const GetEnv& getenv) {
  const std::string named = given.empty() ? Get(getenv, "AWS_PROFILE") : given;
  return named.empty() ? "default" : named;
}

}  // namespace

absl::StatusOr<AwsCredentials> FindAwsCredentials(const std::string& profile,
                                                  const GetEnv& getenv) {
  if (profile.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        AwsCredentials credentials,
        CheckWhole({Get(getenv, "AWS_ACCESS_KEY_ID"), Get(getenv, "AWS_SECRET_ACCESS_KEY"),
                    Get(getenv, "AWS_SESSION_TOKEN")},
                   "the environment"));
    if (!credentials.access_key.empty()) return credentials;
  }
  const std::string section = ProfileOf(profile, getenv);
  const std::string file = FileNamed(getenv, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  SYNCGRADS_ASSIGN_OR_RETURN(const Settings settings, ReadSection(file, section));
  SYNCGRADS_ASSIGN_OR_RETURN(
      AwsCredentials credentials,
      CheckWhole({Get(settings, "aws_access_key_id"), Get(settings, "aws_secret_access_key"),
                  Get(settings, "aws_session_token")},
                 absl::StrCat("profile \"", section, "\" in ", file)));
  if (!credentials.access_key.empty()) return credentials;
  return absl::NotFoundError(absl::StrCat(
      "there are no credentials for S3: ",
      profile.empty() ? "AWS_ACCESS_KEY_ID is not set, and there are none for " : "none for ",
      "profile \"", section, "\" in ", file));
}

absl::StatusOr<AwsRegion> FindAwsRegion(const std::string& profile, const GetEnv& getenv) {
  AwsRegion place;
  place.region = Get(getenv, "AWS_REGION");
  if (place.region.empty()) place.region = Get(getenv, "AWS_DEFAULT_REGION");
  if (place.region.empty()) {
    const std::string name = ProfileOf(profile, getenv);
    SYNCGRADS_ASSIGN_OR_RETURN(
        const Settings settings,
        ReadSection(FileNamed(getenv, "AWS_CONFIG_FILE", "config"),
                    name == "default" ? name : absl::StrCat("profile ", name)));
    place.region = Get(settings, "region");
  }
  if (place.region.empty()) place.region = "us-east-1";
  place.endpoint = Get(getenv, "AWS_ENDPOINT_URL_S3");
  if (place.endpoint.empty()) place.endpoint = Get(getenv, "AWS_ENDPOINT_URL");
  return place;
}

}  // namespace syncgrads
