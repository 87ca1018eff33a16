#include "common/secret.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

using ::testing::MatchesRegex;

TEST(SecretTest, AHashMatchesItsSecretOnly) {
  const std::string hash = HashSecret("secret");
  EXPECT_THAT(hash, MatchesRegex("sha256:[0-9a-f]{32}:[0-9a-f]{64}"));
  EXPECT_NE(HashSecret("secret"), hash);
  EXPECT_TRUE(MatchesHash(hash, "secret"));
  for (const char* other : {"", "Secret", "secret ", "secre"}) {
    EXPECT_FALSE(MatchesHash(hash, other)) << other;
  }
  EXPECT_FALSE(MatchesHash(hash, hash));
}

TEST(SecretTest, AShownSecretIsComparedWithHashesOfAnySalt) {
  const std::string salt = DrawSecret();
  const std::string one = HashSecret("secret", salt), other = HashSecret("another", salt);
  ShownSecret shown("secret");
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_TRUE(shown.Matches(one));
    EXPECT_FALSE(shown.Matches(other));
    EXPECT_TRUE(shown.Matches(HashSecret("secret")));
    EXPECT_FALSE(shown.Matches(HashSecret("another")));
    EXPECT_FALSE(shown.Matches("plain"));
  }
  EXPECT_TRUE(MatchesHash(one, "secret"));
}

TEST(SecretTest, TheHashOfNoSecretIsEmpty) {
  EXPECT_EQ(HashSecret(""), "");
  EXPECT_TRUE(MatchesHash("", ""));
  EXPECT_FALSE(MatchesHash("", "secret"));
}

// Made as docs/security.md says: printf %s SALTsecret | sha256sum.
TEST(SecretTest, OthersCanMakeAHash) {
  const std::string hash =
      "sha256:0123456789abcdef0123456789abcdef:"
      "0bcca54fe4bc681d31dd1922d1cf4e8e3d4548a4bcca8fd33d47cbec06fd41e0";
  EXPECT_TRUE(MatchesHash(hash, "secret"));
  EXPECT_FALSE(MatchesHash(hash, "Secret"));
}

TEST(SecretTest, ATextOfAnotherFormIsTheSecret) {
  for (const char* text : {"plain", "sha256:", "sha256:00:11"}) {
    EXPECT_FALSE(IsSecretHash(text));
    EXPECT_TRUE(MatchesHash(text, text));
    EXPECT_FALSE(MatchesHash(text, "another"));
  }
}

TEST(SecretTest, EqualSecretsAreEqualAsAWhole) {
  EXPECT_TRUE(EqualSecrets("", ""));
  EXPECT_TRUE(EqualSecrets("secret", "secret"));
  EXPECT_FALSE(EqualSecrets("secret", "secrets"));
  EXPECT_FALSE(EqualSecrets("secret", "Secret"));
}

TEST(SecretTest, SecretsDiffer) {
  EXPECT_THAT(DrawSecret(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(DrawSecret(), DrawSecret());
}

class ReadSecretTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = absl::StrCat(
        ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
};

TEST_F(ReadSecretTest, FromTheFileOrTheFlagOrTheEnvironment) {
  EXPECT_EQ(*ReadSecret({"token", "", Write("secret \r\nnot this\n"), "c"}), "secret");
  EXPECT_EQ(*ReadSecret({"token", "b", "", "c"}), "b");
  EXPECT_EQ(*ReadSecret({"token", "", "", "c"}), "c");
  EXPECT_EQ(*ReadSecret({"token", "", "", nullptr}), "");
}

TEST_F(ReadSecretTest, SaysWhatIsWrongAndNoSecret) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(ReadSecret({"token", "a", Write("b"), nullptr}), kInvalid,
              {"--token and --token_file are both set"});
  ExpectError(ReadSecret({"token", "", Write("\nb"), nullptr}), kInvalid,
              {"--token_file=", "its first line is empty"});
  ExpectError(ReadSecret({"token", "", Write(std::string(1025, 'x')), nullptr}), kInvalid,
              {"longer than 1024 bytes"});
  EXPECT_THAT(ReadSecret({"token", "", Write(std::string(1024, 'x') + "\n"), nullptr}), IsOk());
  ExpectError(ReadSecret({"token", "", "/nowhere/token", nullptr}), absl::StatusCode::kNotFound,
              {"--token_file=/nowhere/token"});
}

}  // namespace
}  // namespace syncgrads
