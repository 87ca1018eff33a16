#include "common/secret.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

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
