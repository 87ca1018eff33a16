#include "worker/storage/aws_account.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"

namespace syncgrads {
namespace {

class AwsAccountTest : public ::testing::Test {
 protected:
  AwsAccountTest() {
    environment_["HOME"] = home_.path();
    getenv_ = [this](const char* name) -> const char* {
      const auto it = environment_.find(name);
      return it == environment_.end() ? nullptr : it->second.c_str();
    };
  }

  TemporaryDirectory home_;
  std::map<std::string, std::string> environment_;
  GetEnv getenv_;
};

constexpr const char* kFile =
    "# keys\n"
    "[default]\n"
    "aws_access_key_id = usual\n"
    "aws_secret_access_key=usual secret\n"
    "s3 =\n"
    "  aws_access_key_id = nested\n"
    "[team]\n"
    "aws_access_key_id = team's\n"
    "aws_secret_access_key = team's secret\n"
    "aws_session_token = for a while\n";

TEST_F(AwsAccountTest, TheEnvironmentComesFirst) {
  home_.Write(".aws/credentials", kFile);
  environment_["AWS_ACCESS_KEY_ID"] = "key";
  environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
  const auto credentials = FindAwsCredentials("", getenv_);
  SYNCGRADS_ASSERT_OK(credentials);
  EXPECT_EQ(credentials->access_key, "key");
  EXPECT_EQ(credentials->secret_key, "secret");
  EXPECT_EQ(credentials->session_token, "");
}

TEST_F(AwsAccountTest, AProfileIsFoundInTheFile) {
  home_.Write(".aws/credentials", kFile);
  EXPECT_EQ(FindAwsCredentials("", getenv_)->access_key, "usual");
  EXPECT_EQ(FindAwsCredentials("", getenv_)->secret_key, "usual secret");
  environment_["AWS_PROFILE"] = "team";
  EXPECT_EQ(FindAwsCredentials("", getenv_)->access_key, "team's");
  EXPECT_EQ(FindAwsCredentials("", getenv_)->session_token, "for a while");
  // A profile that is requested by name takes precedence over the environment.
  environment_["AWS_ACCESS_KEY_ID"] = "key";
  environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
  EXPECT_EQ(FindAwsCredentials("default", getenv_)->access_key, "usual");
}

TEST_F(AwsAccountTest, WithoutCredentialsTheErrorSaysWhereTheyWereLookedFor) {
  ExpectError(FindAwsCredentials("", getenv_), absl::StatusCode::kNotFound,
              {"AWS_ACCESS_KEY_ID", "\"default\"", home_.path() + "/.aws/credentials"});
  environment_["AWS_SHARED_CREDENTIALS_FILE"] = home_.Write("keys", kFile);
  ExpectError(FindAwsCredentials("other", getenv_), absl::StatusCode::kNotFound,
              {"\"other\"", home_.path() + "/keys"});
}

TEST_F(AwsAccountTest, HalfOfAKeyIsAnErrorThatDoesNotShowIt) {
  environment_["AWS_SECRET_ACCESS_KEY"] = "hidden";
  const absl::Status status = FindAwsCredentials("", getenv_).status();
  ExpectError(status, absl::StatusCode::kInvalidArgument, {"the environment", "no access key ID"});
  EXPECT_EQ(status.message().find("hidden"), absl::string_view::npos);
}

TEST_F(AwsAccountTest, TheRegionIsTheEnvironmentsOrTheProfiles) {
  EXPECT_EQ(FindAwsRegion("", getenv_)->region, "us-east-1");
  home_.Write(".aws/config", "[default]\nregion = eu-west-1\n[profile team]\nregion=eu-north-1\n");
  EXPECT_EQ(FindAwsRegion("", getenv_)->region, "eu-west-1");
  EXPECT_EQ(FindAwsRegion("team", getenv_)->region, "eu-north-1");
  environment_["AWS_DEFAULT_REGION"] = "sa-east-1";
  environment_["AWS_ENDPOINT_URL"] = "http://there";
  EXPECT_EQ(FindAwsRegion("team", getenv_)->region, "sa-east-1");
  EXPECT_EQ(FindAwsRegion("team", getenv_)->endpoint, "http://there");
}

}  // namespace
}  // namespace syncgrads
