// A real S3 server with a bucket, and a proxy before it.

#ifndef SYNCGRADS_TESTS_WORKER_STORAGE_S3_FIXTURE_H_
#define SYNCGRADS_TESTS_WORKER_STORAGE_S3_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/testing/process/process.h"
#include "tests/worker/storage/faulty_proxy.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/storage/s3_storage.h"

namespace syncgrads {

constexpr const char* kBucket = "data-sets";
constexpr const char* kAccount = "S3RVER";  // also its secret

class S3Test : public ::testing::Test {
 protected:
  // Starts the server. It is not part of the build: ./dev installs it, and tells
  // tests where with NODE_PATH.
  void SetUp() override;

  std::string endpoint() const;
  // Of the storage under test: short pauses, the right credentials.
  S3StorageOptions Options() const;
  // Puts an object into the bucket.
  void Put(const std::string& key, const std::string& contents);

  TemporaryDirectory directory_;
  std::unique_ptr<testing::Process> server_;
  std::unique_ptr<FaultyProxy> proxy_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_STORAGE_S3_FIXTURE_H_
