#include "server/page/live_page.h"

#include <httplib.h>

#include <chrono>
#include <memory>
#include <regex>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/page/page_files.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

class LivePageTest : public ::testing::Test {
 protected:
  LivePageTest() {
    AddLivePage(pages_);
    auto started = HttpServer::Start({"127.0.0.1", 0}, pages_);
    EXPECT_THAT(started, IsOk());
    http_ = *std::move(started);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", http_->address().port);
    // The library's default is 5 s, which a loaded machine may need.
    client_->set_read_timeout(std::chrono::minutes(1));
  }

  std::string TypeOf(const std::string& path) {
    const httplib::Result answer = client_->Get(path);
    if (!answer || answer->status != 200) return "no such page";
    return answer->get_header_value("Content-Type");
  }

  HttpPages pages_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(LivePageTest, EachFileHasTheTypeThatItsNameSays) {
  EXPECT_EQ(TypeOf("/"), "text/html; charset=utf-8");
  EXPECT_EQ(TypeOf("/page.css"), "text/css; charset=utf-8");
  EXPECT_EQ(TypeOf("/page.js"), "text/javascript; charset=utf-8");
  EXPECT_EQ(TypeOf("/uPlot.iife.min.js"), "text/javascript; charset=utf-8");
  EXPECT_EQ(TypeOf("/icon.svg"), "image/svg+xml");
  EXPECT_EQ(TypeOf("/LICENSE"), "text/plain; charset=utf-8");
  EXPECT_EQ(TypeOf("/index.html"), "no such page");
}

TEST_F(LivePageTest, EveryFileIsServedAsItIsAndForbidsWhatIsNotFromThisServer) {
  for (const PageFile& file : PageFiles()) {
    const std::string name(file.name);
    const httplib::Result answer = client_->Get(name == "index.html" ? "/" : "/" + name);
    ASSERT_TRUE(answer) << name;
    EXPECT_EQ(answer->status, 200) << name;
    EXPECT_EQ(answer->body, file.contents) << name;
    EXPECT_FALSE(answer->body.empty()) << name;
    const std::string policy = answer->get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'self';")) << name;
    EXPECT_THAT(policy, Not(HasSubstr("unsafe"))) << name;
    EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff") << name;
  }
}

TEST_F(LivePageTest, WhatTheFilesLoadIsServed) {
  // The names in a file's src="...", href="...", from "./...", readJson("...") and
  // EventSource("...").
  const std::regex reference(
      R"re((?:src="|href="|from "\./|readJson\("|EventSource\(")([^"]+)")re");
  std::set<std::string> loaded;
  for (const PageFile& file : PageFiles()) {
    if (file.name.starts_with("uPlot")) continue;
    const std::string text(file.contents);
    for (std::sregex_iterator at(text.begin(), text.end(), reference), end; at != end; ++at) {
      loaded.insert((*at)[1]);
    }
  }
  EXPECT_THAT(loaded,
              IsSupersetOf({"page.js", "page.css", "charts.js", "job_view.js", "uPlot.iife.min.js",
                            "uPlot.min.css", "status.json", "curves.json", "log.json", "events"}));
  for (const std::string& name : loaded) {
    // StatusPages() and StatusEvents() add these.
    if (name == "metrics" || name == "events" || name.ends_with(".json")) continue;
    EXPECT_THAT(pages_, Contains(testing::Key("/" + name)));
  }
}

}  // namespace
}  // namespace syncgrads::server
