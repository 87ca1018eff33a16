// The HTTP server with certificates: its files, and callers that certificates identify.

#include <httplib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file_descriptor.h"
#include "common/http/http_server.h"
#include "common/tls/certificate_authority.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

using ::syncgrads::testing::WaitUntil;

class HttpTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/http-tls-XXXXXX");
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    WriteCa("ca", authority_);
    Issue("server", authority_, "IP:127.0.0.1");
    for (const std::string caller : {"a", "b", "c"}) Issue(caller, authority_, "URI:" + caller);
    HttpSecurity security;
    security.tls.certificate = Path("server.pem");
    security.tls.key = Path("server.key");
    security.tls.client_ca = Path("ca.pem");
    HttpEvents events;
    events.interval = absl::Hours(1);
    events.pages["/events"] = [this]() -> absl::StatusOr<std::string> {
      return absl::StrCat(++events_);
    };
    HttpPages pages;
    pages["/a"] = [] { return HttpReply{.body = "page"}; };
    auto started = HttpServer::Start({"127.0.0.1", 0}, std::move(pages), std::move(events),
                                     std::move(security));
    ASSERT_THAT(started, IsOk());
    server_ = *std::move(started);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  std::string Contents(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(Path(file)).rdbuf();
    return text.str();
  }
  void WriteCa(const std::string& name, const CertificateAuthority& authority) const {
    EXPECT_THAT(WriteSecretFile(Path(name + ".pem"), authority.certificate()), IsOk());
  }
  void Issue(const std::string& name, const CertificateAuthority& authority,
             const std::string& san) const {
    const auto issued = authority.Issue({san});
    ASSERT_THAT(issued, IsOk());
    ASSERT_THAT(issued->Write(Path(name)), IsOk());
  }
  // A client with the certificate of `caller` that trusts the authority `ca`.
  std::unique_ptr<httplib::SSLClient> NewClient(const std::string& caller,
                                                const std::string& ca = "ca") const {
    auto client = std::make_unique<httplib::SSLClient>(
        "127.0.0.1", server_->address().port, Path(caller + ".pem"), Path(caller + ".key"));
    client->set_ca_cert_path(Path(ca + ".pem").c_str());
    client->set_read_timeout(60, 0);
    return client;
  }
  // The body of the page, or the error.
  std::string Get(const std::string& caller, const std::string& ca = "ca") const {
    const httplib::Result answer = NewClient(caller, ca)->Get("/a");
    return answer ? answer->body : httplib::to_string(answer.error());
  }

  const CertificateAuthority authority_{"a"};
  std::string folder_;
  std::atomic<int> events_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTlsTest, FilesAreReadWhenTheyHaveChanged) {
  EXPECT_EQ(Get("a"), "page");
  const FileDescriptor watch(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::string copy = Path("copy");
  std::ofstream(copy + ".pem") << std::ifstream(Path("ca.pem")).rdbuf();
  for (const std::string file : {"server.pem", "server.key", "ca.pem"}) {
    ASSERT_GE(inotify_add_watch(watch.get(), Path(file).c_str(), IN_OPEN), 0) << file;
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get("a", "copy"), "page");
  char event[4096];
  EXPECT_EQ(read(watch.get(), event, sizeof(event)), -1) << "the files were opened again";

  // Another authority signs the server's certificate and those of callers.
  const CertificateAuthority other("b");
  WriteCa("new-ca", other);
  Issue("server", other, "IP:127.0.0.1");
  EXPECT_EQ(Get("a", "new-ca"), "page");
  Issue("d", other, "URI:d");
  EXPECT_NE(Get("d", "new-ca"), "page");
  WriteCa("ca", other);
  EXPECT_EQ(Get("d", "new-ca"), "page");
  EXPECT_NE(Get("a", "new-ca"), "page");
}

TEST_F(HttpTlsTest, FilesThatCannotBeUsedAreTriedAgain) {
  std::rename(Path("server.key").c_str(), Path("kept").c_str());
  for (int i = 0; i < 2; ++i) EXPECT_NE(Get("a"), "page");
  // A FIFO that nobody writes to does not block.
  ASSERT_EQ(mkfifo(Path("server.key").c_str(), 0600), 0);
  for (int i = 0; i < 2; ++i) EXPECT_NE(Get("a"), "page");
  std::rename(Path("kept").c_str(), Path("server.key").c_str());
  EXPECT_EQ(Get("a"), "page");
}

TEST_F(HttpTlsTest, WhileFilesCannotBeUsedThoseThatWereUsedLastStay) {
  EXPECT_EQ(Get("a"), "page");
  std::ofstream(Path("copy.pem")) << std::ifstream(Path("ca.pem")).rdbuf();
  const std::string whole = Contents("server.pem");
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> faults = {
      {"missing", [](const std::string&) {}},
      {"empty", [](const std::string& path) { std::ofstream{path}; }},
      {"garbage", [](const std::string& path) { std::ofstream(path) << "garbage"; }},
      {"truncated",
       [&](const std::string& path) { std::ofstream(path) << whole.substr(0, whole.size() / 2); }},
      {"a FIFO", [](const std::string& path) { EXPECT_EQ(mkfifo(path.c_str(), 0600), 0) << path; }},
      {"a directory",
       [](const std::string& path) { EXPECT_EQ(mkdir(path.c_str(), 0700), 0) << path; }}};
  for (const std::string file : {"server.pem", "server.key", "ca.pem"}) {
    for (const auto& [fault, make] : faults) {
      std::rename(Path(file).c_str(), Path("kept").c_str());
      make(Path(file));
      for (int i = 0; i < 2; ++i) EXPECT_EQ(Get("a", "copy"), "page") << file << " is " << fault;
      std::remove(Path(file).c_str());
      std::rename(Path("kept").c_str(), Path(file).c_str());
    }
  }
  // The key of another certificate.
  std::rename(Path("server.key").c_str(), Path("kept").c_str());
  std::ofstream(Path("server.key")) << Contents("a.key");
  EXPECT_EQ(Get("a", "copy"), "page");
  std::rename(Path("kept").c_str(), Path("server.key").c_str());

  // Files that can be used are used again, and the old ones are not.
  const CertificateAuthority other("b");
  WriteCa("new-ca", other);
  Issue("server", other, "IP:127.0.0.1");
  EXPECT_EQ(Get("a", "new-ca"), "page");
  EXPECT_NE(Get("a", "copy"), "page");
}

TEST_F(HttpTlsTest, ACallerHasTwoOfTheFourStreamsOfEvents) {
  // Reads a stream of events until it ends.
  const auto read = [](httplib::SSLClient& client) {
    client.Get("/events", [](const char*, size_t) { return true; });
  };
  std::vector<std::thread> readers;
  const auto open = [&](const std::string& caller, int already) {
    readers.emplace_back([&, client = NewClient(caller)] { read(*client); });
    EXPECT_TRUE(WaitUntil([&] { return events_ == already + 1; }));
  };
  const auto refusal = [&](const std::string& caller) {
    const httplib::Result refused = NewClient(caller)->Get("/events");
    return refused ? absl::StrCat(refused->status, " ", refused->body) : "none";
  };
  open("a", 0);
  open("a", 1);
  EXPECT_EQ(refusal("a"), "503 this caller has 2 streams of events, which is the limit for one\n");
  open("b", 2);
  open("b", 3);
  EXPECT_EQ(refusal("c"), "503 this server has 4 streams of events, which is the limit\n");
  server_ = nullptr;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace syncgrads
