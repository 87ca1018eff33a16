// Batch normalisation over the batches of several workers.

#include "worker/team/team_exchange.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/batch_norm.h"

namespace syncgrads {
namespace {

constexpr int64_t kChannels = 3;
constexpr double kNear = 1e-12;

Matrix<double> Random(int64_t rows, uint64_t seed) {
  RandomStream random(seed, {});
  Matrix<double> matrix(rows, kChannels);
  for (Eigen::Index i = 0; i < matrix.size(); ++i) matrix.data()[i] = 4 * random.NextUniform() + 1;
  return matrix;
}

// The results of a layer for a batch and a gradient.
struct Passed {
  Matrix<double> output;
  Matrix<double> input_gradient;
  Matrix<double> weight_gradient;
  Matrix<double> bias_gradient;
  Matrix<double> running_variance;
};

Passed PassThrough(const Matrix<double>& batch, const Matrix<double>& gradient,
                   BatchExchange* exchange) {
  CpuDevice<double> device(1);
  BatchNormOptions options;
  options.across_workers = true;
  BatchNorm<double> layer("bn", device, Shape::Flat(kChannels), options);
  layer.SetExchange(exchange);
  layer.parameters()[0]->values << 1, -2, 0.5;
  DeviceMatrix<double> input(device), output_gradient(device), input_gradient(device);
  input.Bring(batch);
  output_gradient.Resize(gradient.rows(), gradient.cols());
  output_gradient.host() = gradient;
  Passed passed;
  passed.output = layer.Forward({/*training=*/true}, input).host();
  layer.Backward(input, output_gradient, &input_gradient);
  passed.input_gradient = input_gradient.host();
  passed.weight_gradient = layer.parameters()[0]->gradient;
  passed.bias_gradient = layer.parameters()[1]->gradient;
  passed.running_variance = layer.states()[1]->values;
  return passed;
}

// Distributes 9 rows over the workers (`rows`) and compares with one worker that has all of them.
// `weights` are the weights of the workers' losses.
void ExpectAsOneBatch(const std::vector<int64_t>& rows, const std::vector<double>& weights) {
  const auto workers = static_cast<uint32_t>(rows.size());
  const Matrix<double> batch = Random(9, 1);
  const Matrix<double> gradient = Random(9, 2);
  Matrix<double> weighted = gradient;
  std::vector<int64_t> begins;
  for (int64_t begin = 0, i = 0; i < workers; begin += rows[i++]) {
    begins.push_back(begin);
    weighted.middleRows(begin, rows[i]) *= weights[i];
  }
  const Passed whole = PassThrough(batch, weighted, nullptr);
  FakeJob job(workers);
  std::vector<Passed> parts(workers);
  job.Run([&](Team& team) {
    TeamExchange exchange(team);
    const uint32_t rank = team.rank();
    exchange.Begin(weights[rank]);
    parts[rank] = PassThrough(batch.middleRows(begins[rank], rows[rank]),
                              gradient.middleRows(begins[rank], rows[rank]), &exchange);
    SYNCGRADS_EXPECT_OK(exchange.status());
    // In a second step the last worker has no rows left.
    if (rank + 1 < workers) {
      exchange.Begin(1);
      parts[rank].output = PassThrough(batch.topRows(2), gradient.topRows(2), &exchange).output;
    } else {
      SYNCGRADS_EXPECT_OK(exchange.Skip());
    }
    SYNCGRADS_EXPECT_OK(exchange.status());
  });
  Matrix<double> weight_gradient = Matrix<double>::Zero(kChannels, 1);
  Matrix<double> bias_gradient = weight_gradient;
  for (uint32_t i = 0; i < workers; ++i) {
    const Matrix<double> part = whole.input_gradient.middleRows(begins[i], rows[i]);
    EXPECT_TRUE((weights[i] * parts[i].input_gradient).isApprox(part, kNear))
        << "rank " << i << ":\n"
        << weights[i] * parts[i].input_gradient << "\nnot\n"
        << part;
    for (int64_t c = 0; c < kChannels; ++c) {
      weight_gradient(c, 0) += weights[i] * parts[i].weight_gradient.data()[c];
      bias_gradient(c, 0) += weights[i] * parts[i].bias_gradient.data()[c];
      EXPECT_NEAR(parts[i].running_variance.data()[c], whole.running_variance.data()[c], kNear);
    }
  }
  for (int64_t c = 0; c < kChannels; ++c) {
    EXPECT_NEAR(weight_gradient(c, 0), whole.weight_gradient.data()[c], 1e-10);
    EXPECT_NEAR(bias_gradient(c, 0), whole.bias_gradient.data()[c], 1e-10);
  }
}

TEST(TeamExchangeTest, BatchesOfSeveralWorkersAreNormalisedAsOne) {
  ExpectAsOneBatch({3, 3, 3}, {1, 1, 1});
  ExpectAsOneBatch({5, 4}, {1, 1});
}

TEST(TeamExchangeTest, EachWorkersLossCountsAsItsGradientDoes) {
  ExpectAsOneBatch({2, 6, 1}, {2, 6, 1});
}

TEST(TeamExchangeTest, AWorkerThatHasNeverHadRowsIsAnError) {
  FakeJob job(1);
  job.Run([&](Team& team) {
    ExpectError(TeamExchange(team).Skip(), absl::StatusCode::kFailedPrecondition,
                {"batch_norm.across_workers"});
  });
}

}  // namespace
}  // namespace syncgrads
