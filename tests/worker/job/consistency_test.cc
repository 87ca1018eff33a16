#include "worker/job/consistency.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/time.h"
#include "common/group/policy.h"
#include "common/update_rule.h"
#include "proto/job.pb.h"

namespace syncgrads {
namespace {

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

Policy PolicyIn(const std::string& text) { return PolicyOf(Parse<v1::Consistency>(text)); }

Optimizer OuterIn(const std::string& text) { return OuterOptimizerOf(Parse<v1::LocalSteps>(text)); }

TEST(PolicyTest, LocalStepsAndWhatIsNotSetAreSynchronous) {
  EXPECT_EQ(PolicyIn(""), Policy(Sync{}));
  EXPECT_EQ(PolicyIn("sync {}"), Policy(Sync{}));
  EXPECT_EQ(PolicyIn("local_steps { steps: 4 }"), Policy(Sync{}));
}

TEST(PolicyTest, AQuorumHasTheNumbersOfTheJobFile) {
  EXPECT_EQ(PolicyIn("quorum { least: 3 grace_ms: 50 kept: 5 }"),
            Policy(Quorum{.least = 3, .grace = absl::Milliseconds(50), .kept = 5}));
  EXPECT_EQ(PolicyIn("quorum { least: 2 }"), Policy(Quorum{.least = 2, .kept = 8}));
}

TEST(PolicyTest, TheRateDependsOnStalenessIfTheJobFileSaysSo) {
  EXPECT_EQ(PolicyIn("bounded_staleness { bound: 2 scale_rate: true }"),
            Policy(Staleness{.bound = 2, .scales_rate = true}));
  EXPECT_EQ(PolicyIn("bounded_staleness {}"), Policy(Staleness{.bound = 0, .scales_rate = false}));
  EXPECT_EQ(PolicyIn("async { scale_rate: true }"), Policy(Staleness{.scales_rate = true}));
  EXPECT_EQ(PolicyIn("async {}"), Policy(Staleness{.scales_rate = false}));
}

TEST(OuterOptimizerTest, IsThatOfDiLoCoUnlessTheJobFileHasAnother) {
  const Optimizer diloco = Nesterov{.learning_rate = 0.7, .momentum = 0.9};
  EXPECT_EQ(OuterIn("steps: 4"), diloco);
  EXPECT_EQ(OuterIn("steps: 4 nesterov {}"), diloco);
  EXPECT_EQ(OuterIn("nesterov { learning_rate: 0.5 }"),
            Optimizer(Nesterov{.learning_rate = 0.5, .momentum = 0.9}));
  EXPECT_EQ(OuterIn("nesterov { momentum: 0 }"),
            Optimizer(Nesterov{.learning_rate = 0.7, .momentum = 0}));
  EXPECT_EQ(OuterIn("nesterov { weight_decay: 0.25 }"),
            Optimizer(Nesterov{.learning_rate = 0.7, .momentum = 0.9, .weight_decay = 0.25}));
}

// The parameters become the average: the update subtracts the average change as it is.
TEST(OuterOptimizerTest, APlainAverageIsAStepOfRateOne) {
  EXPECT_EQ(OuterIn("average {}"), Optimizer(Sgd{.learning_rate = 1}));
}

TEST(ReadsAllDataTest, ElasticJobsCompetitionsAndThePartitionAllDo) {
  const auto reads = [](const std::string& text) { return ReadsAllData(Parse<v1::JobFile>(text)); };
  EXPECT_TRUE(reads("elastic {}"));
  EXPECT_TRUE(reads("consistency { best_of { steps: 1 } }"));
  EXPECT_TRUE(reads("data { partition: ALL }"));
  EXPECT_FALSE(reads(""));
  EXPECT_FALSE(reads("consistency { local_steps { steps: 1 } }"));
}

}  // namespace
}  // namespace syncgrads
