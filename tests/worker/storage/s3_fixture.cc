#include "tests/worker/storage/s3_fixture.h"

#include <curl/curl.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {

void S3Test::SetUp() {
  auto server = testing::Process::Start(
      {.program = "node",
       .args = {"tests/worker/storage/s3_server.js", directory_.path() + "/s3", kBucket}});
  ASSERT_TRUE(server.ok()) << server.status() << "\n./dev setup installs it";
  server_ = *std::move(server);
  const auto line = server_->WaitForLine("port ", absl::Seconds(60));
  ASSERT_TRUE(line.ok()) << line.status() << "\n./dev setup installs it";
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(line->substr(line->find(' ') + 1), &port)) << *line;
  proxy_ = std::make_unique<FaultyProxy>(port);
}

std::string S3Test::endpoint() const { return absl::StrCat("http://127.0.0.1:", proxy_->port()); }

S3StorageOptions S3Test::Options() const {
  S3StorageOptions options;
  options.s3.bucket = kBucket;
  options.s3.endpoint = endpoint();
  options.s3.credentials = AwsCredentials{kAccount, kAccount, ""};
  options.s3.first_pause = absl::Milliseconds(1);
  return options;
}

void S3Test::Put(const std::string& key, const std::string& contents) {
  CURL* const easy = curl_easy_init();
  curl_slist* const headers = curl_slist_append(nullptr, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  const std::string url = absl::StrCat(endpoint(), "/", kBucket, "/", key);
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "PUT");
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(contents.size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, contents.data());
  curl_easy_perform(easy);
  long code = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
  EXPECT_EQ(code, 200) << url;
  curl_slist_free_all(headers);
  curl_easy_cleanup(easy);
}

}  // namespace syncgrads
