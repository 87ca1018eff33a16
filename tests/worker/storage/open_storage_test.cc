// The data sets of job files, as they are opened.

#include "worker/storage/open_storage.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kAnySize = size_t{1} << 20;

v1::JobFile JobWith(const std::string& text) {
  v1::JobFile job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

const char* NoEnvironment(const char*) { return nullptr; }

TEST(OpenStorageTest, PathsAreRelativeToTheNamedDirectoryOrToTheJobFile) {
  const TemporaryDirectory directory;
  directory.Write("sets/flowers/a", "of the set");
  directory.Write("a", "beside the job file");
  const char* sets =
      "data_sets { name: \"other\" directory: \"nowhere\" } "
      "data_sets { name: \"flowers\" directory: \"sets/flowers\" } ";
  const auto named = OpenStorage(JobWith(absl::StrCat(sets, "data { set: \"flowers\" }")),
                                 directory.path(), NoEnvironment);
  SYNCGRADS_ASSERT_OK(named);
  EXPECT_EQ(*(*named)->Read("a", kAnySize), "of the set");
  const auto none = OpenStorage(JobWith(sets), directory.path(), NoEnvironment);
  SYNCGRADS_ASSERT_OK(none);
  EXPECT_EQ(*(*none)->Read("a", kAnySize), "beside the job file");
  // An absolute directory stays as it is.
  const auto absolute =
      OpenStorage(JobWith(absl::StrCat("data_sets { name: \"x\" directory: \"", directory.path(),
                                       "/sets\" } data { set: \"x\" }")),
                  "/elsewhere", NoEnvironment);
  SYNCGRADS_ASSERT_OK(absolute);
  EXPECT_EQ(*(*absolute)->Read("flowers/a", kAnySize), "of the set");
}

// A store that has no object, and keeps the last request.
class BucketTest : public ::testing::Test {
 protected:
  BucketTest() {
    home_.Write(".aws/credentials",
                "[default]\naws_access_key_id = usual\naws_secret_access_key = secret\n"
                "[team]\naws_access_key_id = teams\naws_secret_access_key = secret\n");
    home_.Write(".aws/config",
                "[default]\nregion = eu-west-3\n[profile team]\nregion = sa-east-1\n");
    environment_["HOME"] = home_.path();
    // Sends all 100 bytes of an object, and then breaks the connection.
    store_.Get("/b/p/cut", [this](const httplib::Request&, httplib::Response& response) {
      {
        const MutexLock lock(mutex_);
        ++cut_;
      }
      response.status = 206;
      response.set_header("Content-Range", "bytes 0-99/100");
      response.set_header("ETag", "\"1\"");
      response.set_chunked_content_provider("application/octet-stream",
                                            [](size_t offset, httplib::DataSink& sink) {
                                              if (offset > 0) return false;
                                              const std::string bytes(100, 'x');
                                              return sink.write(bytes.data(), bytes.size());
                                            });
    });
    store_.Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
      const MutexLock lock(mutex_);
      path_ = request.path;
      authorization_ = request.get_header_value("Authorization");
      response.status = 404;
    });
    port_ = store_.bind_to_any_port("127.0.0.1");
    serving_ = std::thread([this] { store_.listen_after_bind(); });
  }
  ~BucketTest() override {
    // Before the server runs, stop() has no effect.
    while (!store_.is_running()) std::this_thread::yield();
    store_.stop();
    serving_.join();
  }

  absl::StatusOr<std::shared_ptr<const Storage>> Open(const std::string& settings) const {
    return OpenStorage(
        JobWith(absl::StrCat("data_sets { name: \"s\" s3 { bucket: \"b\" prefix: \"p\" endpoint: "
                             "\"http://127.0.0.1:",
                             port_, "\" ", settings, " } } data { set: \"s\" }")),
        home_.path(), [this](const char* name) -> const char* {
          const auto it = environment_.find(name);
          return it == environment_.end() ? nullptr : it->second.c_str();
        });
  }

  // Reads an object of the bucket, which has further `settings`. Returns the request's signature.
  std::string Read(const std::string& settings) {
    const auto storage = Open(settings);
    SYNCGRADS_EXPECT_OK(storage);
    if (!storage.ok()) return "";
    ExpectError((*storage)->Read("a", kAnySize), absl::StatusCode::kNotFound, {"s3://b/p/a"});
    const MutexLock lock(mutex_);
    EXPECT_EQ(path_, "/b/p/a");
    return authorization_;
  }

  TemporaryDirectory home_;
  std::map<std::string, std::string> environment_;
  httplib::Server store_;
  int port_ = 0;
  std::thread serving_;
  Mutex mutex_;
  int cut_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string path_ ABSL_GUARDED_BY(mutex_);
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(BucketTest, RequestsAreSignedForTheRegionAndTheProfileOfTheJobFile) {
  const auto signed_for = [](const std::string& key, const std::string& region) {
    return AllOf(HasSubstr("Credential=" + key + "/"),
                 HasSubstr("/" + region + "/s3/aws4_request"));
  };
  EXPECT_THAT(Read(""), signed_for("usual", "eu-west-3"));
  EXPECT_THAT(Read("region: \"ap-south-1\""), signed_for("usual", "ap-south-1"));
  EXPECT_THAT(Read("profile: \"team\""), signed_for("teams", "sa-east-1"));
}

TEST_F(BucketTest, AnonymousRequestsAreNotSignedAndNeedNoCredentials) {
  environment_.clear();
  EXPECT_EQ(Read("anonymous: true"), "");
}

TEST_F(BucketTest, AConnectionThatBreaksAfterTheLastByteCostsNoFurtherRequest) {
  const auto storage = Open("");
  SYNCGRADS_ASSERT_OK(storage);
  const auto read = (*storage)->Read("cut", kAnySize);
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(*read, std::string(100, 'x'));
  const MutexLock lock(mutex_);
  EXPECT_EQ(cut_, 1);
}

}  // namespace
}  // namespace syncgrads
