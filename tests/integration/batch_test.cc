// N workers with batches of B rows train like one worker with batches of N * B rows: the averages
// differ only by the order of the additions.

#include <math.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

// Returns all numbers in a safetensors file. The file has the length of the header (8 bytes), the
// header, and the data.
template <typename T>
std::vector<T> NumbersIn(const std::string& file) {
  uint64_t header = 0;
  if (file.size() < sizeof(header)) return {};
  memcpy(&header, file.data(), sizeof(header));
  const std::string data = file.substr(std::min(file.size(), sizeof(header) + header));
  std::vector<T> numbers(data.size() / sizeof(T));
  memcpy(numbers.data(), data.data(), numbers.size() * sizeof(T));
  return numbers;
}

template <typename T>
double LargestDifference(const std::string& file, const std::string& other) {
  const std::vector<T> a = NumbersIn<T>(file), b = NumbersIn<T>(other);
  // The elements of the three dense layers: 4 * 8 + 8, 8 * 16 + 16, 16 * 3 + 3.
  EXPECT_EQ(a.size(), 235u);
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;  // keeps a NaN
  }
  return largest;
}

// Returns the parameters after `passes` passes over three shards.
std::string Train(v1::DType dtype, int passes, int workers, int batch_size) {
  const std::string job = WriteIrisJob("batches", [&](v1::JobFile& file) {
    file.set_dtype(dtype);
    file.set_epochs(passes);
    file.set_batch_size(batch_size);
    file.mutable_data()->set_shards(3);
  });
  Cluster cluster(2);
  return TrainOn(cluster, job, workers)[0];
}

TEST(BatchTest, ThreeWorkersTrainAsOneWithThreeTimesTheBatchInFloat64) {
  EXPECT_LE(LargestDifference<double>(Train(v1::F64, 50, 3, 8), Train(v1::F64, 50, 1, 24)), 1e-9);
}

TEST(BatchTest, ThreeWorkersTrainAsOneWithThreeTimesTheBatchInFloat32) {
  EXPECT_LE(LargestDifference<float>(Train(v1::F32, 1, 3, 8), Train(v1::F32, 1, 1, 24)), 1e-4);
}

}  // namespace
}  // namespace syncgrads::testing
