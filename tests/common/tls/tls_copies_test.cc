#include "common/tls/tls_copies.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/tls/certificate_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

using syncgrads::testing::WaitUntil;
using ::testing::HasSubstr;

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TlsCopiesTest : public ::testing::Test {
 protected:
  TlsCopiesTest() {
    folder_ = absl::StrCat(::testing::TempDir(), "/copies-XXXXXX");
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    tls_.certificate = absl::StrCat(folder_, "/own.pem");
    tls_.key = absl::StrCat(folder_, "/own.key");
    tls_.client_ca = absl::StrCat(folder_, "/ca.pem");
    tls_.refresh = absl::Milliseconds(10);
    Write(tls_.client_ca, authority_.certificate());
    WritePair(first_);
  }

  static void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(WriteSecretFile(path, text).ok());
  }
  void WritePair(const IssuedCertificate& pair) const {
    Write(tls_.certificate, pair.certificate);
    Write(tls_.key, pair.key);
  }
  TlsCopies Copies() {
    return {tls_, TlsSide::kListens, [this](const std::string& line) {
              MutexLock lock(mutex_);
              warned_ += line;
            }};
  }
  std::string Warned() {
    MutexLock lock(mutex_);
    return warned_;
  }
  static std::string Joined(const IssuedCertificate& pair) {
    return absl::StrCat(pair.certificate, "\n", pair.key);
  }

  const CertificateAuthority authority_{"a"};
  const IssuedCertificate first_ = *authority_.Issue({"DNS:localhost"});
  const IssuedCertificate second_ = *authority_.Issue({"DNS:localhost"});
  std::string folder_;
  TlsOptions tls_;

 private:
  Mutex mutex_;
  std::string warned_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(TlsCopiesTest, AllFilesAreCopied) {
  const TlsCopies copies = Copies();
  EXPECT_EQ(copies.options().certificate, copies.options().key);
  EXPECT_EQ(ContentOf(copies.options().key), Joined(first_));
  EXPECT_EQ(ContentOf(copies.options().client_ca), authority_.certificate());
  EXPECT_EQ(copies.options().ca, "");
  EXPECT_TRUE(CheckTls(copies.options(), TlsSide::kListens).ok());
}

TEST_F(TlsCopiesTest, WithoutFilesThereIsNoCopy) {
  const TlsCopies copies({}, TlsSide::kListens, nullptr);
  EXPECT_TRUE(copies.options().empty());
}

TEST_F(TlsCopiesTest, OnlyFilesThatBelongTogetherAreUsed) {
  const TlsCopies copies = Copies();
  Write(tls_.key, second_.key);
  ASSERT_TRUE(WaitUntil([&] { return !Warned().empty(); }));
  EXPECT_THAT(Warned(), HasSubstr(absl::StrCat("the key in --tls_key=", tls_.key)));
  EXPECT_THAT(Warned(), HasSubstr("stay in use"));
  EXPECT_EQ(ContentOf(copies.options().key), Joined(first_));
  Write(tls_.certificate, second_.certificate);
  EXPECT_TRUE(WaitUntil([&] { return ContentOf(copies.options().key) == Joined(second_); }));
}

TEST_F(TlsCopiesTest, OnlyCertificatesAndTheirKeyAreCopied) {
  Write(tls_.certificate, absl::StrCat(second_.key, first_.certificate));
  const TlsCopies copies = Copies();
  EXPECT_EQ(ContentOf(copies.options().key), Joined(first_));
}

TEST_F(TlsCopiesTest, FilesThatCouldNotBeReadAreReadLater) {
  const TlsCopies copies = Copies();
  ASSERT_TRUE(second_.Write(absl::StrCat(folder_, "/next")).ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(rename(absl::StrCat(folder_, "/next.pem").c_str(), tls_.certificate.c_str()), 0);
  EXPECT_EQ(rename(absl::StrCat(folder_, "/next.key").c_str(), tls_.key.c_str()), 0);
  EXPECT_TRUE(WaitUntil([&] { return !Warned().empty(); }));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(Warned(), HasSubstr("Too many open files"));
  EXPECT_TRUE(WaitUntil([&] { return ContentOf(copies.options().key) == Joined(second_); }));
}

TEST_F(TlsCopiesTest, AFileThatIsMissingIsNamed) {
  const TlsCopies copies = Copies();
  ASSERT_EQ(unlink(tls_.client_ca.c_str()), 0);
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(Warned(), tls_.client_ca); }));
  EXPECT_EQ(ContentOf(copies.options().client_ca), authority_.certificate());
}

TEST_F(TlsCopiesTest, PathsOfTheDeadAreNotThoseOfOtherFiles) {
  std::optional<TlsCopies> copies(std::in_place, tls_, TlsSide::kListens, nullptr);
  const std::string path = copies->options().key;
  copies.reset();
  const int other = open(tls_.key.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(ContentOf(path), "");
  close(other);
  for (int i = 0; i < 3; ++i) {
    copies.emplace(tls_, TlsSide::kListens, nullptr);
    EXPECT_EQ(ContentOf(copies->options().key), Joined(first_));
    copies.reset();
    EXPECT_EQ(ContentOf(path), "");
  }
}

}  // namespace
}  // namespace syncgrads
