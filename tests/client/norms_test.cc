// Update rules that need norms over the whole step: the optimizer on real servers is compared with
// a plain loop in float64.

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

constexpr uint32_t kWorkers = 3;
constexpr int kSteps = 6;
constexpr size_t kElements[] = {40, 15, 1};

struct Rule {
  Optimizer optimizer;
  double clip_norm;
};
const std::vector<Rule>& Rules() {
  static const auto* const rules =
      new std::vector<Rule>{{Sgd{.learning_rate = 0.5}, 0.7},
                            {Lamb{.learning_rate = 0.1, .weight_decay = 0.1}, 0},
                            {Lars{.learning_rate = 20}, 0},
                            {Lamb{.learning_rate = 0.1, .weight_decay = 0.1}, 0.7},
                            {Lars{.learning_rate = 20}, 0.7}};
  return *rules;
}

std::string Named(const Rule& rule) {
  return absl::StrCat(ToString(rule.optimizer), " clip_norm=", rule.clip_norm);
}

GroupSpec Spec(const Rule& rule, uint32_t chunk_bytes) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {40}}, {"b", DType::kF32, {3, 5}}, {"c", DType::kF32, {}}};
  spec.rule = rule.optimizer;
  spec.clip_norm = rule.clip_norm;
  spec.chunk_bytes = chunk_bytes;
  return spec;
}

using Tensors = std::vector<std::vector<float>>;

Tensors Start() {
  Tensors tensors;
  for (const size_t elements : kElements) {
    std::vector<float>& tensor = tensors.emplace_back(elements);
    for (size_t i = 0; i < elements; ++i) tensor[i] = std::cos(0.3f * static_cast<float>(i));
  }
  return tensors;
}

// In the second step no worker has a gradient for "b".
bool IsSkipped(size_t tensor, int step) { return tensor == 1 && step == 1; }

float GradientOf(size_t tensor, size_t element, int step, uint32_t rank) {
  const double size = step == 3 ? 0.001 : 1;  // the norm is too small to be clipped
  return static_cast<float>(
      size * std::sin(1.0 + 0.9 * static_cast<double>(element + 5 * tensor) + 2.0 * step + rank));
}

// The formulas of common/optim/update.h, computed in float64 over whole tensors.
class PlainLoop {
 public:
  explicit PlainLoop(Rule rule) : rule_(std::move(rule)) {
    for (const std::vector<float>& tensor : Start()) {
      values_.emplace_back(tensor.begin(), tensor.end());
      m_.emplace_back(tensor.size());
      v_.emplace_back(tensor.size());
    }
  }

  void Step(int step) {
    std::vector<std::vector<double>> gradient;
    double squares = 0;
    for (size_t t = 0; t < values_.size(); ++t) {
      gradient.emplace_back(values_[t].size());
      for (size_t i = 0; i < gradient[t].size() && !IsSkipped(t, step); ++i) {
        for (uint32_t rank = 0; rank < kWorkers; ++rank) {
          gradient[t][i] += GradientOf(t, i, step, rank) / static_cast<double>(kWorkers);
        }
        squares += gradient[t][i] * gradient[t][i];
      }
    }
    const double norm = std::sqrt(squares);
    const double factor =
        rule_.clip_norm > 0 && norm > rule_.clip_norm ? rule_.clip_norm / norm : 1;
    for (size_t t = 0; t < values_.size(); ++t) {
      for (double& g : gradient[t]) g *= factor;
      if (!IsSkipped(t, step)) Update(t, gradient[t], ++updates_[t]);
    }
  }
  const std::vector<std::vector<double>>& values() const { return values_; }

 private:
  static double Norm(const std::vector<double>& values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  }

  void Update(size_t t, const std::vector<double>& g, int updates) {
    std::vector<double>& x = values_[t];
    if (const auto* sgd = std::get_if<Sgd>(&rule_.optimizer)) {
      for (size_t i = 0; i < x.size(); ++i) x[i] -= sgd->learning_rate * g[i];
    } else if (const auto* lars = std::get_if<Lars>(&rule_.optimizer)) {
      const double ratio = lars->trust * Norm(x) / (Norm(g) + lars->weight_decay * Norm(x));
      for (size_t i = 0; i < x.size(); ++i) {
        m_[t][i] = lars->momentum * m_[t][i] +
                   lars->learning_rate * ratio * (g[i] + lars->weight_decay * x[i]);
        x[i] -= m_[t][i];
      }
    } else if (const auto* lamb = std::get_if<Lamb>(&rule_.optimizer)) {
      std::vector<double> change(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        m_[t][i] = lamb->beta1 * m_[t][i] + (1 - lamb->beta1) * g[i];
        v_[t][i] = lamb->beta2 * v_[t][i] + (1 - lamb->beta2) * g[i] * g[i];
        const double m = m_[t][i] / (1 - std::pow(lamb->beta1, updates));
        const double v = v_[t][i] / (1 - std::pow(lamb->beta2, updates));
        change[i] = m / (std::sqrt(v) + lamb->epsilon) + lamb->weight_decay * x[i];
      }
      const double ratio = Norm(x) / Norm(change);
      for (size_t i = 0; i < x.size(); ++i) x[i] -= lamb->learning_rate * ratio * change[i];
    }
  }

  const Rule rule_;
  std::vector<std::vector<double>> values_, m_, v_;
  std::vector<int> updates_ = std::vector<int>(std::size(kElements));
};

void Train(Group& group, uint32_t rank, Tensors& parameters) {
  std::vector<void*> pointers;
  for (std::vector<float>& tensor : parameters) pointers.push_back(tensor.data());
  ASSERT_OK(group.Broadcast(0, pointers, kTimeout));
  for (int step = 0; step < kSteps; ++step) {
    Tensors gradients = parameters;
    for (uint32_t t = 0; t < gradients.size(); ++t) {
      for (size_t i = 0; i < gradients[t].size(); ++i) {
        gradients[t][i] = GradientOf(t, i, step, rank);
      }
      if (IsSkipped(t, step)) {
        ASSERT_OK(group.Skip(TensorId{t}, parameters[t].data()));
      } else {
        ASSERT_OK(group.Push(TensorId{t}, gradients[t].data(), BytesOf(gradients[t]),
                             parameters[t].data()));
      }
    }
    ASSERT_OK(group.WaitStep(kTimeout));
  }
}

Tensors TrainOn(uint32_t servers, const Rule& rule, uint32_t chunk_bytes) {
  Cluster cluster(servers);
  Workers all(cluster, kWorkers);
  std::vector<Tensors> trained(kWorkers);
  all.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(rule, chunk_bytes), kTimeout);
    ASSERT_OK(group);
    trained[rank] = Start();
    Train(**group, rank, trained[rank]);
  });
  for (const Tensors& replica : trained) EXPECT_EQ(replica, trained[0]);
  return trained[0];
}

TEST(NormsTest, OfWholeStepsWhateverTheServersAndTheChunks) {
  for (const Rule& rule : Rules()) {
    PlainLoop plain(rule);
    for (int step = 0; step < kSteps; ++step) plain.Step(step);
    for (const uint32_t chunk_bytes : {44, 64, 4096}) {
      const Tensors one = TrainOn(1, rule, chunk_bytes);
      for (size_t t = 0; t < one.size(); ++t) {
        for (size_t i = 0; i < one[t].size(); ++i) {
          EXPECT_NEAR(one[t][i], plain.values()[t][i], 2e-5)
              << Named(rule) << " in chunks of " << chunk_bytes << ": " << t << ", " << i;
        }
      }
      for (const uint32_t servers : {2, 3}) {
        EXPECT_EQ(TrainOn(servers, rule, chunk_bytes), one) << Named(rule) << " on " << servers;
      }
    }
  }
}

TEST(NormsTest, AreRefusedWhereThereAreNoSteps) {
  Cluster cluster;
  Workers one(cluster, 1);
  GroupSpec spec = Spec({Lamb{}, 0}, 64);
  spec.policy = Staleness{.bound = 2};
  const auto group = one[0].Register(spec, kTimeout);
  ASSERT_EQ(group.status().code(), absl::StatusCode::kInvalidArgument) << group.status();
  for (const std::string part : {"staleness(bound=2", "lamb(", "\"model\""}) {
    EXPECT_NE(std::string(group.status().message()).find(part), std::string::npos)
        << group.status();
  }
}

}  // namespace
}  // namespace syncgrads::testing
