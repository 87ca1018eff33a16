// A fixture with a real S3 server, which has one bucket, and a proxy in front of it.

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
constexpr const char* kAccount = "S3RVER";  // also its secret key

class S3Test : public ::testing::Test {
 protected:
  // Starts the server. The server is not part of the build: ./dev installs it and passes its
  // location to tests in NODE_PATH.
  void SetUp() override;

  std::string endpoint() const;
  // Returns options for the storage under test: the right credentials and short pauses between
  // retries.
  S3StorageOptions Options() const;
  // Writes an object to the bucket.
  void Put(const std::string& key, const std::string& contents);

  TemporaryDirectory directory_;
  std::unique_ptr<testing::Process> server_;
  std::unique_ptr<FaultyProxy> proxy_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_STORAGE_S3_FIXTURE_H_
