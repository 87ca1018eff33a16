#include "server/access/access.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/file_version.h"
#include "common/secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/access_rules.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/fixtures.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// As long as tokens have to be.
const std::string kRight = "the-right-token-0001";
const std::string kOther = "another-token-000002";

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

TEST(AccessRulesTest, ReadsRolesJobsAndWho) {
  const auto rules = ParseAccessRules(
      "# a comment\n"
      "\n"
      "worker   resnet-*   token:secret\r\n"
      "\tviewer * san:*.ops.example.org\n");
  ASSERT_THAT(rules, IsOk());
  ASSERT_EQ(rules->size(), 2);
  EXPECT_EQ((*rules)[0].role, Role::kWorker);
  EXPECT_EQ((*rules)[0].jobs, "resnet-*");
  EXPECT_TRUE(MatchesHash((*rules)[0].token_hash, "secret"));
  EXPECT_THAT((*rules)[0].token_hash, Not(HasSubstr("secret")));
  EXPECT_EQ((*rules)[1].role, Role::kViewer);
  EXPECT_EQ((*rules)[1].name, "*.ops.example.org");
}

TEST(AccessRulesTest, NamesTheLineThatIsWrongAndNoToken) {
  const auto error = [](const std::string& line) {
    return std::string(ParseAccessRules("\n" + line).status().message());
  };
  EXPECT_THAT(error("worker *"), HasSubstr("line 2: it has 2 words"));
  EXPECT_THAT(error("boss * token:x"), HasSubstr("line 2: unknown role \"boss\""));
  for (const std::string who : {"secret", "token:", "san:", "sha256:secret"}) {
    EXPECT_THAT(error("worker * " + who),
                AllOf(HasSubstr("line 2: the third word must be"), Not(HasSubstr("secret"))));
  }
  EXPECT_THAT(error("worker * token:" + std::string(2000, 'x')),
              AllOf(HasSubstr("2000"), Not(HasSubstr("xxx"))));
}

TEST(AccessRulesTest, PatternsMatchWholeTexts) {
  EXPECT_TRUE(MatchesPattern("*", "any/job"));
  EXPECT_TRUE(MatchesPattern("spiffe://a/*", "spiffe://a/b/c"));
  EXPECT_TRUE(MatchesPattern("job-?", "job-1"));
  EXPECT_FALSE(MatchesPattern("job", "job-1"));
  EXPECT_FALSE(MatchesPattern("*.example.org", "example.org.evil"));
  EXPECT_FALSE(MatchesPattern("job", std::string("job\0-1", 6)));
}

class AccessTest : public ::testing::Test {
 protected:
  ~AccessTest() override { std::remove(path_.c_str()); }

  void WriteRules(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    ASSERT_EQ(chmod((path_ + ".new").c_str(), 0600), 0);
    ASSERT_EQ(std::rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }
  static Caller WithToken(const std::string& token, const std::string& peer = "10.0.0.1") {
    return {peer, {}, token};
  }
  static Caller WithName(const std::string& name) { return {"10.0.0.1", {name}, ""}; }

  const std::string path_ =
      absl::StrCat(::testing::TempDir(), "/rules-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  FakeClock clock_;
  LineJournal journal_;
};

TEST_F(AccessTest, WithoutRulesOnlyThePlanIsProtected) {
  Access access({.server_token = "servers"}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  EXPECT_THAT(access.Check(WithToken(""), Action::kEvict, "iris"), IsOk());
  EXPECT_THAT(access.Check(WithToken("servers"), Action::kFollow, kAllJobs), IsOk());
  ExpectError(access.Check(WithToken("guess"), Action::kFollow, kAllJobs), kDenied,
              {"wrong token"});
  ExpectError(access.Check(WithToken(""), Action::kDrain, kAllJobs), kDenied, {});
}

TEST_F(AccessTest, CertificatesHaveTheRolesInTheirNames) {
  Access access({.has_certificates = true}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  EXPECT_THAT(access.Check(WithName("syncgrads:worker"), Action::kJoin, "iris"), IsOk());
  ExpectError(access.Check(WithName("syncgrads:worker"), Action::kEvict, "iris"), kDenied,
              {"needs the role operator for job \"iris\"", "a certificate of syncgrads:worker"});
  ExpectError(access.Check(WithName("worker"), Action::kJoin, "iris"), kDenied, {});
  EXPECT_THAT(access.Check(WithName("syncgrads:server"), Action::kFollow, kAllJobs), IsOk());
  ExpectError(access.Check(WithToken(""), Action::kGetStatus, kAllJobs), kDenied,
              {"no certificate and no token"});
}

TEST_F(AccessTest, ARuleIsForItsJobs) {
  WriteRules("worker iris-* token:a\nviewer iris-1 token:b\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  EXPECT_THAT(access.Check(WithToken("a"), Action::kJoin, "iris-1"), IsOk());
  ExpectError(access.Check(WithToken("a"), Action::kJoin, "wine"), kDenied, {});
  EXPECT_TRUE(access.Allows(WithToken("b"), Action::kGetStatus, "iris-1"));
  EXPECT_FALSE(access.Allows(WithToken("b"), Action::kGetStatus, "iris-2"));
  EXPECT_THAT(access.CheckAnyJob(WithToken("b"), Action::kGetStatus), IsOk());
  ExpectError(access.Check(WithToken("b"), Action::kGetStatus, kAllJobs), kDenied,
              {"for all jobs"});
  EXPECT_EQ(access.wrong_tokens(), 0);
}

TEST_F(AccessTest, OnlyAStarIsForAllJobs) {
  WriteRules("operator ? token:a\noperator [*] token:b\noperator ** token:c\noperator * token:d\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  for (const std::string token : {"a", "b", "c"}) {
    ExpectError(access.Check(WithToken(token), Action::kDrain, kAllJobs), kDenied,
                {"for all jobs"});
    EXPECT_FALSE(access.Allows(WithToken(token), Action::kEvents, kAllJobs)) << token;
  }
  EXPECT_THAT(access.Check(WithToken("a"), Action::kEvict, "x"), IsOk());
  EXPECT_THAT(access.Check(WithToken("d"), Action::kDrain, kAllJobs), IsOk());
}

TEST_F(AccessTest, ATokenThatIsTooLongIsNeitherComparedNorCounted) {
  WriteRules("worker * token:w\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  ExpectError(access.Check(WithToken(std::string(1025, 'x')), Action::kExplain, "a"),
              absl::StatusCode::kInvalidArgument, {"1025 bytes", "1024"});
  EXPECT_EQ(access.wrong_tokens(), 0);
  ExpectError(access.Check(WithToken(std::string(1024, 'x')), Action::kExplain, "a"), kDenied, {});
  EXPECT_EQ(access.wrong_tokens(), 1);
}

TEST_F(AccessTest, AFileThatChangesIsReadAgain) {
  WriteRules("worker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  WriteRules("worker * token:" + kOther + "\n");
  ExpectError(access.Check(WithToken(kRight), Action::kJoin, "iris"), kDenied, {});
  EXPECT_THAT(access.Check(WithToken(kOther), Action::kJoin, "iris"), IsOk());
  WriteRules("worker");
  EXPECT_THAT(access.Check(WithToken(kOther), Action::kJoin, "iris"), IsOk());
  std::remove(path_.c_str());
  EXPECT_THAT(access.Check(WithToken(kOther), Action::kJoin, "iris"), IsOk());
  EXPECT_THAT(journal_.lines(),
              ElementsAre(HasSubstr("note: the file with the tokens has changed"),
                          HasSubstr("warning: a wrong token has come from 10.0.0.1"),
                          AllOf(HasSubstr("warning: "), HasSubstr("the old rules still apply"),
                                HasSubstr("line 1: it has 1 words"))));
}

TEST_F(AccessTest, AFileThatCannotBeReadIsLoggedOnce) {
  WriteRules("worker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const std::ifstream held(path_);  // so that no other file gets its inode
  // A directory can be read as a file by no user.
  std::remove(path_.c_str());
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(access.Check(WithToken(kRight), Action::kJoin, "iris"), IsOk());
  }
  EXPECT_THAT(journal_.lines(), Contains(HasSubstr("the old rules still apply")).Times(1));
  // A file that can be used is read even so.
  std::remove(path_.c_str());
  WriteRules("worker * token:" + kOther + "\n");
  EXPECT_THAT(access.Check(WithToken(kOther), Action::kJoin, "iris"), IsOk());
}

// Opening a pipe without a writer would wait for one.
TEST_F(AccessTest, APipeOrALargeFileIsNotRead) {
  WriteRules("worker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const std::ifstream held(path_);  // so that no other file gets its inode
  std::remove(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(access.Check(WithToken(kRight), Action::kJoin, "iris"), IsOk());
  ExpectError(access.Load(), absl::StatusCode::kInvalidArgument, {"not a regular file"});
  std::remove(path_.c_str());
  WriteRules("worker * token:" + kOther + "\n");
  std::filesystem::resize_file(path_, (4 << 20) + 1);
  EXPECT_THAT(access.Check(WithToken(kRight), Action::kJoin, "iris"), IsOk());
  ExpectError(access.Load(), absl::StatusCode::kInvalidArgument, {"4194305 bytes", "4194304"});
  EXPECT_THAT(journal_.lines(), Contains(HasSubstr("the old rules still apply")).Times(2));
}

TEST_F(AccessTest, AFileThatIsChangedWithinItsTimeOfModificationIsReadAgain) {
  WriteRules("worker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  struct stat before = {};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  std::ofstream(path_) << "worker * token:" << kOther << "\n\n";
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  // It is read when its writer must be done.
  EXPECT_TRUE(testing::WaitUntil(
      [&] { return access.Check(WithToken(kOther), Action::kJoin, "iris").ok(); }));
}

TEST_F(AccessTest, AFileThatIsWrittenInPlaceIsNotReadBeforeItsWriterIsDone) {
  WriteRules("worker * token:" + kOther + "\nworker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  std::ofstream writer(path_);
  writer << "worker * token:" << kOther << "2\n" << std::flush;
  const bool accepted = access.Check(WithToken(kRight), Action::kJoin, "iris").ok();
  // A test that was paused meanwhile shows nothing.
  EXPECT_TRUE(accepted || absl::Now() - FileVersion::At(path_).changed > absl::Milliseconds(900));
  writer << "worker * token:" << kRight << "\n" << std::flush;
  EXPECT_TRUE(testing::WaitUntil(
      [&] { return access.Check(WithToken(kOther + "2"), Action::kJoin, "iris").ok(); }));
  EXPECT_TRUE(testing::WaitUntil(
      [&] { return access.Check(WithToken(kRight), Action::kJoin, "iris").ok(); }));
}

TEST_F(AccessTest, AFileThatOthersMayReadOrChangeIsLoggedOnceForEachVersion) {
  const auto lines_with_mode = [&](mode_t mode) {
    WriteRules("worker * token:" + kRight + "\n");
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    LineJournal journal;
    Access access({.tokens_file = path_}, journal, clock_);
    EXPECT_THAT(access.Load(), IsOk());
    for (int i = 0; i < 3; ++i) access.Check(WithToken(""), Action::kJoin, "iris").IgnoreError();
    return journal.lines();
  };
  EXPECT_THAT(lines_with_mode(0600), IsEmpty());
  EXPECT_THAT(lines_with_mode(0640), ElementsAre(HasSubstr("mode is 0640, so that its group may "
                                                           "read it")));
  EXPECT_THAT(lines_with_mode(0604), ElementsAre(HasSubstr("all users may read it")));
  EXPECT_THAT(lines_with_mode(0622), ElementsAre(HasSubstr("all users may change it")));
}

TEST_F(AccessTest, TokensThatCanBeGuessedAreLogged) {
  WriteRules("worker * token:short\nviewer * token:" + kRight + "\nviewer * token:also-short\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  EXPECT_THAT(journal_.lines(), ElementsAre(HasSubstr("2 of its tokens are shorter than 16")));
}

TEST_F(AccessTest, TheNewestFileAppliesWhicheverThreadReadsIt) {
  WriteRules("worker * token:0\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!over) access.Check({"10.0.0.1", {}, ""}, Action::kJoin, "iris").IgnoreError();
    });
  }
  // As long as a file is open, no other file gets its inode.
  std::vector<std::ifstream> replaced;
  for (int i = 1; i <= 100; ++i) {
    replaced.emplace_back(path_);
    WriteRules(absl::StrCat("worker * token:", i, "\n"));
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(access.Check(WithToken("100"), Action::kJoin, "iris"), IsOk());
}

TEST_F(AccessTest, AFileThatCannotBeUsedIsAnErrorAtTheStart) {
  Access access({.tokens_file = path_}, journal_, clock_);
  ExpectError(access.Load(), absl::StatusCode::kInvalidArgument,
              {"--tokens_file=", "No such file"});
  WriteRules("worker * secret");
  ExpectError(access.Load(), absl::StatusCode::kInvalidArgument, {"line 1"});
}

TEST_F(AccessTest, WrongTokensAreCountedLoggedOnceAndSlowedAndRightOnesAreNot) {
  WriteRules("worker * token:" + kRight + "\n");
  Access access({.tokens_file = path_}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const auto join = [&](const std::string& token) {
    return access.Check(WithToken(token), Action::kJoin, "iris");
  };
  for (int i = 0; i < 50; ++i) ExpectError(join("wrong"), kDenied, {"a token"});
  for (int i = 0; i < 100; ++i) {
    ExpectError(join("wrong"), absl::StatusCode::kUnavailable, {"10.0.0.1"});
    // A peer that guesses does not keep others of the same address out.
    EXPECT_THAT(join(kRight), IsOk());
  }
  // A right token that is not for this action is no guess.
  ExpectError(access.Check(WithToken(kRight), Action::kEvict, "iris"), kDenied, {});
  EXPECT_EQ(access.wrong_tokens(), 150);
  EXPECT_THAT(journal_.lines(), ElementsAre(HasSubstr("wrong token has come from 10.0.0.1")));
  clock_.Advance(absl::Seconds(1));
  ExpectError(join("wrong"), kDenied, {});
  ExpectError(join("wrong"), absl::StatusCode::kUnavailable, {});
}

TEST_F(AccessTest, TheAddressesOfANetworkHaveOneAllowance) {
  Access access({}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const auto guess = [&](const std::string& peer) {
    return access.Count(WithToken("x", peer), absl::PermissionDeniedError("wrong"));
  };
  for (int i = 0; i < 50; ++i) {
    ExpectError(guess(absl::StrCat("2001:db8:0:1::", absl::Hex(i))), kDenied, {"wrong"});
    ExpectError(guess(absl::StrCat("127.0.0.", i)), kDenied, {"wrong"});
  }
  ExpectError(guess("2001:db8:0:1:ffff::1"), absl::StatusCode::kUnavailable, {"2001:db8:0:1::/64"});
  ExpectError(guess("2001:db8:0:2::1"), kDenied, {"wrong"});
  for (const std::string peer : {"127.1.2.3", "::1", "::ffff:127.0.0.99"}) {
    ExpectError(guess(peer), absl::StatusCode::kUnavailable, {"127.0.0.1"});
  }
}

TEST_F(AccessTest, AllNetworksTogetherHaveOneAllowance) {
  Access access({}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const auto guess = [&](int i) {
    return access.Count(WithToken("x", absl::StrCat("20.0.", i / 256, ".", i % 256)),
                        absl::PermissionDeniedError("wrong"));
  };
  for (int i = 0; i < 1000; ++i) ExpectError(guess(i), kDenied, {});
  ExpectError(guess(1000), absl::StatusCode::kUnavailable, {"all addresses"});
  clock_.Advance(absl::Seconds(1));
  for (int i = 0; i < 20; ++i) ExpectError(guess(2000 + i), kDenied, {});
  ExpectError(guess(3000), absl::StatusCode::kUnavailable, {});
}

TEST_F(AccessTest, TheOldestAllowanceMakesRoom) {
  Access access({}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const auto guess = [&](const std::string& peer) {
    return access.Count(WithToken("x", peer), absl::PermissionDeniedError("wrong"));
  };
  for (int i = 0; i < 4095; ++i) {
    guess(absl::StrCat("20.0.", i / 256, ".", i % 256)).IgnoreError();
  }
  clock_.Advance(absl::Seconds(1));
  for (int i = 0; i < 50; ++i) guess("10.0.0.1").IgnoreError();
  guess("30.0.0.1").IgnoreError();
  ExpectError(guess("10.0.0.1"), absl::StatusCode::kUnavailable, {"10.0.0.1"});
}

TEST_F(AccessTest, TokensThatAreComparedElsewhereCountToo) {
  Access access({}, journal_, clock_);
  ASSERT_THAT(access.Load(), IsOk());
  const auto count = [&](const std::string& token, const absl::Status& compared) {
    return access.Count(WithToken(token), compared);
  };
  EXPECT_THAT(count("x", absl::OkStatus()), IsOk());
  EXPECT_THAT(journal_.lines(), IsEmpty());
  for (int i = 0; i < 50; ++i) {
    ExpectError(count("x", absl::PermissionDeniedError("wrong")), kDenied, {"wrong"});
  }
  ExpectError(count("x", absl::PermissionDeniedError("wrong")), absl::StatusCode::kUnavailable, {});
  EXPECT_THAT(count("x", absl::OkStatus()), IsOk());
  // A caller without a token has not guessed.
  ExpectError(count("", absl::PermissionDeniedError("wrong")), kDenied, {"wrong"});
  EXPECT_EQ(access.wrong_tokens(), 51);
}

}  // namespace
}  // namespace syncgrads::server
