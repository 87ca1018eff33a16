#include "worker/job/job_file.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/job/renamed_fields.h"

namespace syncgrads {
namespace {

// The lines are numbered, because the tests check the line of an error.
constexpr const char* kJob =
    "name: \"iris\"\n"                                      // 1
    "batch_size: 8\n"                                       // 2
    "epochs: 50\n"                                          // 3
    "data {\n"                                              // 4
    "  table { path: \"iris.csv\" }\n"                      // 5
    "  target: \"class\"\n"                                 // 6
    "  shards: 3\n"                                         // 7
    "}\n"                                                   // 8
    "model {\n"                                             // 9
    "  layers { dense { outputs: 8 activation: TANH } }\n"  // 10
    "  layers { dense { outputs: 3 } }\n"                   // 11
    "}\n"                                                   // 12
    "loss { logit_cross_entropy {} }\n"                     // 13
    "optimizer { adam { learning_rate: 0.001 } }\n";        // 14

// Parses kJob with the text `from` replaced by `to`.
absl::StatusOr<Job> ParseWith(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kJob, {{from, to}});
  EXPECT_NE(text, kJob) << "there is no " << from;
  return ParseJobFile(text, "dir/x.job");
}

void ExpectRefused(const std::string& from, const std::string& to,
                   std::initializer_list<std::string> texts) {
  SCOPED_TRACE(to);
  ExpectError(ParseWith(from, to), absl::StatusCode::kInvalidArgument, texts);
}

TEST(JobFileTest, FillsInWhatIsLeftOut) {
  const auto job = ParseJobFile(kJob, "dir/x.job");
  SYNCGRADS_ASSERT_OK(job);
  EXPECT_EQ(job->directory, "dir");
  EXPECT_EQ(job->file.dtype(), v1::F32);
  EXPECT_EQ(job->file.optimizer_placement(), v1::WORKERS);
  EXPECT_EQ(job->file.model().layers(0).name(), "dense1");
  EXPECT_EQ(job->file.model().layers(1).name(), "dense2");
}

TEST(JobFileTest, AScalingLayerHasANameWithoutANumberUnlessTheJobFileNamesIt) {
  const std::string first = "  layers { dense { outputs: 8";
  const auto unnamed = ParseWith(first, "  layers { min_max_scaling {} }\n" + first);
  SYNCGRADS_ASSERT_OK(unnamed);
  EXPECT_EQ(unnamed->file.model().layers(0).name(), "min_max_scaling");
  const auto named = ParseWith(first, "  layers { name: \"s\" standard_scaling {} }\n" + first);
  SYNCGRADS_ASSERT_OK(named);
  EXPECT_EQ(named->file.model().layers(0).name(), "s");
}

TEST(JobFileTest, AnUnknownFieldIsNamedWithItsLine) {
  ExpectRefused("  shards: 3", "  shard: 3", {"dir/x.job:7:", "\"shard\""});
  ExpectRefused("TANH", "TAN", {"dir/x.job:10:", "TAN"});
}

TEST(JobFileTest, AnOldFieldNameIsRefusedWithTheNewOne) {
  ExpectRefused("  shards: 3", "  holdout_every: 3",
                {"dir/x.job:7:", ": holdout_every is now validation_every"});
  // For each message with a renamed field: the text before the field.
  const std::map<std::string, std::string> begins = {
      {"Conv2dSpec", "model { layers { conv2d { "},
      {"DataSpec", "data { "},
      {"ImageSpec", "data { image { "},
      {"JobFile", ""},
      {"LayerSpec", "model { layers { "},
      {"LossSpec", "loss { "},
      {"PoolSpec", "model { layers { average_pool { "},
      {"LearningRateSchedule.Step", "schedule { step { "},
  };
  for (const RenamedField& field : RenamedFields()) {
    const std::string message(field.message), old_name(field.old_name), new_name(field.new_name);
    SCOPED_TRACE(old_name);
    const auto begin = begins.find(message);
    ASSERT_NE(begin, begins.end()) << message;
    ExpectError(
        ParseJobFile(absl::StrCat("name: \"a\"\n", begin->second, old_name, ": 1"), "x.job"),
        absl::StatusCode::kInvalidArgument,
        {"x.job:2:", absl::StrCat(": ", old_name, " is now ", new_name)});
    const google::protobuf::Descriptor* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
            absl::StrCat("syncgrads.v1.", message));
    ASSERT_NE(descriptor, nullptr) << message;
    EXPECT_NE(descriptor->FindFieldByName(new_name), nullptr);
  }
}

TEST(JobFileTest, AnOldEnumValueIsRefusedWithTheNewOne) {
  const google::protobuf::Descriptor* data = v1::DataSpec::descriptor();
  for (const RenamedValue& value : RenamedValues()) {
    const std::string field(value.field), old_name(value.old_name), new_name(value.new_name);
    SCOPED_TRACE(old_name);
    ExpectError(ParseJobFile(absl::StrCat("name: \"a\"\ndata { ", field, ": ", old_name), "x.job"),
                absl::StatusCode::kInvalidArgument,
                {"x.job:2:", absl::StrCat(": ", old_name, " is now ", new_name)});
    ASSERT_NE(data->FindFieldByName(field), nullptr);
    EXPECT_NE(data->FindFieldByName(field)->enum_type()->FindValueByName(new_name), nullptr);
  }
}

TEST(JobFileTest, AWrongTypeIsNamedWithItsLine) {
  ExpectRefused("batch_size: 8", "batch_size: \"eight\"", {"dir/x.job:2:", "eight"});
  ExpectRefused("batch_size: 8", "batch_size: -8", {"dir/x.job:2:", "-"});
  ExpectRefused("epochs: 50", "epochs: 5000000000", {"dir/x.job:3:", "5000000000"});
}

TEST(JobFileTest, MissingValuesAreNamed) {
  ExpectRefused("name: \"iris\"\n", "", {"dir/x.job:1:1: name: is missing"});
  ExpectRefused("batch_size: 8\n", "", {"batch_size: is 0 or missing"});
  ExpectRefused("epochs: 50\n", "", {"epochs or steps is missing"});
  ExpectRefused("  target: \"class\"\n", "", {"dir/x.job:4:1: data.target: is missing"});
  ExpectRefused("path: \"iris.csv\"", "", {"dir/x.job:5:3: data.table.path: is missing"});
  ExpectRefused("  table { path: \"iris.csv\" }\n", "", {"dir/x.job:4:1: data: has no source"});
  ExpectRefused("loss { logit_cross_entropy {} }\n", "", {"loss: is missing"});
  ExpectRefused("logit_cross_entropy {}", "", {"dir/x.job:13:1: loss: has no kind"});
  ExpectRefused("adam { learning_rate: 0.001 }", "", {"dir/x.job:14:1: optimizer: "});
  ExpectRefused("dense { outputs: 3 }", "", {"dir/x.job:11:3: model.layers[1]: has no kind"});
}

TEST(JobFileTest, ValuesOutOfRangeAreNamedWithTheirLine) {
  ExpectRefused("learning_rate: 0.001", "learning_rate: -1",
                {"dir/x.job:14:20: optimizer.adam.learning_rate: ", "-1"});
  ExpectRefused("learning_rate: 0.001", "beta1: 1", {"dir/x.job:14:20: optimizer.adam.beta1: "});
  ExpectRefused("outputs: 8", "outputs: 0",
                {"dir/x.job:10:20: model.layers[0].dense.outputs: is 0"});
  ExpectRefused("shards: 3", "validation_every: 1", {"dir/x.job:7:3: data.validation_every: is 1"});
  ExpectRefused("shards: 3", "shards: 1048577",
                {"dir/x.job:7:3: data.shards: is 1048577, must be at most 1048576"});
  ExpectRefused("batch_size: 8", "batch_size: 8 threads: 4097",
                {"dir/x.job:2:15: threads: is 4097, must be at most 4096"});
  ExpectRefused("{} }", "{} l2: -0.5 }", {"dir/x.job:13:", "loss.l2: is -0.5"});
  ExpectRefused("{} }", "{} l2: nan }", {"dir/x.job:13:", "loss.l2: is nan"});
  ExpectRefused("batch_size: 8", "batch_size: 8 chunk_bytes: 7",
                {"dir/x.job:2:15: chunk_bytes: is 7", "4194304"});
  ExpectRefused("batch_size: 8", "batch_size: 8 dtype: I32", {"dir/x.job:2:15: dtype: is I32"});
  ExpectRefused("batch_size: 8", "batch_size: 8 dtype: 77", {"dir/x.job:2:"});
  ExpectRefused("\"iris.csv\"", "\"iris.csv\" delimiter: \"ab\"",
                {"dir/x.job:5:", "data.table.delimiter: \"ab\" has 2 bytes"});
  ExpectRefused("table { path: \"iris.csv\" }", "generated { rows: 4294967297 }",
                {"dir/x.job:5:", "data.generated.rows: is 4294967297", "at most 4294967296"});
}

TEST(JobFileTest, ConsistencyThatCannotBeIsNamed) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> errors) {
    ExpectRefused("epochs: 50", "epochs: 50 " + text, errors);
  };
  refused("optimizer_placement: SERVERS consistency { quorum {} }",
          {"consistency.quorum.least: is 0 or missing"});
  refused("optimizer_placement: SERVERS workers: 3 consistency { quorum { least: 4 } }",
          {"consistency.quorum.least: is 4, but workers is 3"});
  refused("consistency { quorum { least: 2 } }", {"consistency.quorum: ", "not elastic"});
  refused("optimizer_placement: SERVERS consistency { quorum { least: 2 kept: 1 } }",
          {"consistency.quorum.kept: is 1"});
  refused("consistency { local_steps {} }", {"consistency.local_steps.steps: is 0 or missing"});
  refused("optimizer_placement: SERVERS consistency { local_steps { steps: 8 } }",
          {"consistency.local_steps: ", "SERVERS"});
  refused("consistency { local_steps { steps: 8 nesterov { momentum: 1 } } }",
          {"consistency.local_steps.nesterov: ", "momentum"});
  refused("consistency { bounded_staleness { bound: 2 } }",
          {"consistency.bounded_staleness: ", "not SERVERS"});
  refused("optimizer_placement: SERVERS elastic {} consistency { async {} }",
          {"consistency.async: ", "elastic"});
  refused("consistency { best_of {} }", {"consistency.best_of.steps: is 0 or missing"});
  refused("consistency { best_of { steps: 5 } }",
          {"consistency.best_of: ", "data.validation_every is 0"});
  refused("consistency { best_of { steps: 5 factor_every: 2 } }",
          {"consistency.best_of.factor: is 0"});
  refused("optimizer_placement: SERVERS consistency { async {} } checkpoint { directory: \"c\" }",
          {"checkpoint: is given, but consistency is async"});
  refused(
      "optimizer_placement: SERVERS consistency { quorum { least: 2 } } check_replicas_every: 5",
      {"check_replicas_every: is given, but consistency is quorum"});
}

TEST(JobFileTest, ContradictionsAreNamed) {
  ExpectRefused("epochs: 50", "epochs: 50 steps: 9",
                {"dir/x.job:3:12: steps: is 9 and epochs is 50"});
  ExpectRefused("batch_size: 8", "batch_size: 8 workers: 4",
                {"dir/x.job:2:15: workers: is 4, but data.shards is 3"});
  ExpectRefused("outputs: 3", "outputs: 1", {"dir/x.job:11:20:", "outputs: is 1", "at least 2"});
  ExpectRefused("logit_cross_entropy", "squared_error", {"dir/x.job:11:20:", "is 3", "needs 1"});
  ExpectRefused("target: \"class\"", "target: \"class\" features: \"a\" features: \"class\"",
                {"dir/x.job:6:", "data.features[1]: \"class\" is the target"});
  ExpectRefused("target: \"class\"", "target: \"class\" features: \"a\" features: \"a\"",
                {"data.features[1]: \"a\" is named twice"});
  ExpectRefused("outputs: 3 }", "outputs: 3 } name: \"dense1\"", {"dir/x.job:11:", "\"dense1\""});
  ExpectRefused("outputs: 3 }", "outputs: 3 } name: \"a/b\"", {"dir/x.job:11:", "slash"});
  ExpectRefused("dense { outputs: 8 activation: TANH }",
                "dense { outputs: 8 } } layers { min_max_scaling {}",
                {"dir/x.job:10:", "must be the first layer"});
}

TEST(JobFileTest, TermsOfAnElasticJobThatCannotBeAreNamed) {
  ExpectRefused("batch_size: 8", "batch_size: 8 workers: 2 elastic { min_workers: 3 }",
                {"dir/x.job:2:", "elastic.min_workers: is 3, but workers is 2"});
  ExpectRefused("batch_size: 8", "batch_size: 8 workers: 2 elastic { max_workers: 1 }",
                {"elastic.max_workers: is 1, but workers is 2"});
  ExpectRefused("shards: 3", "mode: DYNAMIC", {"dir/x.job:7:", "data.mode: is DYNAMIC", "elastic"});
  const std::string replaced =
      absl::StrReplaceAll(kJob, {{"shards: 3", "mode: DYNAMIC order: WITH_REPLACEMENT"},
                                 {"epochs: 50", "epochs: 50 elastic {}"}});
  ExpectError(ParseJobFile(replaced, "dir/x.job"), absl::StatusCode::kInvalidArgument,
              {"data.mode: is DYNAMIC, but order is WITH_REPLACEMENT"});
  SYNCGRADS_EXPECT_OK(
      ParseWith("batch_size: 8", "batch_size: 8 elastic { min_workers: 2 step_timeout_s: 9 }"));
}

TEST(JobFileTest, JoinedTablesThatCannotBeAreNamed) {
  const std::string path = "path: \"iris.csv\"";
  const auto expect = [&](const std::string& tables, const std::string& problem) {
    ExpectRefused(path, path + " " + tables, {"dir/x.job:5:", "data.table." + problem});
  };
  expect("tables { id: \"a\" }", "tables[0].file: is missing");
  expect("tables { file: \"a\" } tables { file: \"a\" }", "tables[1].file: \"a\" is listed twice");
  expect("file: \"b\" tables { file: \"a\" }", "file: is \"b\", but tables are given too");
  expect("tables { file: \"a\" } master_table: \"b\"", "master_table: \"b\" is not among");
}

TEST(JobFileTest, PartitionsClassNamesAndTargetsThatCannotBeAreNamed) {
  ExpectRefused("shards: 3", "mode: DYNAMIC partition: ALL",
                {"dir/x.job:7:", "data.partition: is ALL", "DYNAMIC"});
  const auto expect = [](const std::string& data, const std::string& from, const std::string& to,
                         std::initializer_list<std::string> texts) {
    const std::string text =
        absl::StrReplaceAll(kJob, {{"shards: 3", data}, {"outputs: 3", "outputs: 1"}, {from, to}});
    ExpectError(ParseJobFile(text, "dir/x.job"), absl::StatusCode::kInvalidArgument, texts);
  };
  expect("partition: ALL", "epochs: 50", "epochs: 50 elastic {}",
         {"data.partition: is ALL, but the job is elastic"});
  const std::string loss = "logit_cross_entropy {}", numbers = "squared_error {}";
  expect("class_names: \"a\"", loss, numbers,
         {"dir/x.job:7:", "data.class_names: is given, but the targets are numbers"});
  expect("more_targets: \"class\"", loss, numbers,
         {"dir/x.job:7:", "data.more_targets[0]: \"class\" is empty, or"});
  expect("more_targets: \"y\"", loss, numbers, {"is 1 in the last layer", "needs 2"});
  ExpectRefused("shards: 3", "more_targets: \"y\"",
                {"loss: has targets with classes, but data.more_targets are given"});
  ExpectRefused("shards: 3", "class_names: \"a\" class_names: \"a\"",
                {"dir/x.job:7:", "data.class_names: has a name twice"});
  ExpectRefused("shards: 3", "class_names: \"\" class_names: \"a\"",
                {"dir/x.job:7:", "data.class_names: has an empty name"});
}

TEST(JobFileTest, DataSetsThatCannotBeAreNamed) {
  const std::string epochs = "epochs: 50";
  const auto expect = [&](const std::string& sets, const std::string& problem) {
    ExpectRefused(epochs, epochs + " " + sets, {"dir/x.job:3:", "data_sets[0", problem});
  };
  expect("data_sets { directory: \"d\" }", "].name: is missing");
  expect("data_sets { name: \"a\" }", "]: has no location");
  expect("data_sets { name: \"a\" s3 { prefix: \"p\" } }", "].s3.bucket: is missing");
  ExpectRefused(epochs,
                epochs + " data_sets { name: \"a\" s3 { bucket: \"b\" endpoint: \"host:1\" } }",
                {"data_sets[0].s3.endpoint: \"host:1\" does not begin with http://"});
  const std::string twice = " data_sets { name: \"a\" directory: \"d\" }";
  ExpectRefused(epochs, epochs + twice + twice, {"data_sets[1].name: \"a\" is listed twice"});
  ExpectRefused("shards: 3", "shards: 3 set: \"none\"",
                {"dir/x.job:7:", "data.set: \"none\" is not among the data_sets"});
}

TEST(JobFileTest, ANamedModelHasItsLayersFilledIn) {
  const std::string layers =
      "  layers { dense { outputs: 8 activation: TANH } }\n  layers { dense { outputs: 3 } }\n";
  const auto named = ParseWith(layers, "named { name: \"mlp\" hidden: 8 outputs: 3 }\n");
  SYNCGRADS_ASSERT_OK(named);
  ASSERT_EQ(named->file.model().layers_size(), 2);
  EXPECT_EQ(named->file.model().layers(0).name(), "dense1");
  EXPECT_EQ(named->file.model().layers(1).dense().outputs(), 3u);
}

TEST(JobFileTest, LayersOutOfRangeAreNamedWithTheirLine) {
  const std::string layer = "dense { outputs: 8 activation: TANH }";
  ExpectRefused(layer, "conv2d { outputs: 4 }", {"dir/x.job:10:12: ", "conv2d.kernel_size: is 0"});
  ExpectRefused(layer, "dropout { rate: 1 }",
                {"dir/x.job:10:22: model.layers[0].dropout.rate: is 1"});
  ExpectRefused(layer, "batch_norm { momentum: 2 }", {"batch_norm.momentum: is 2"});
  ExpectRefused(layer, "residual { }", {"model.layers[0].residual: has no body"});
  ExpectRefused(layer, "residual { body { max_pool { } } }",
                {"model.layers[0].residual.body[0].max_pool.kernel_size: is 0"});
  ExpectRefused(layer, "dnse { }", {"dir/x.job:10:", "dnse"});
  const std::string layers =
      "  layers { dense { outputs: 8 activation: TANH } }\n  layers { dense { outputs: 3 } }\n";
  ExpectRefused(layers, "named { name: \"alexnet\" outputs: 3 }\n",
                {"dir/x.job:10:9: model.named.name: ", "\"alexnet\"", "lenet", "resnet50"});
  ExpectRefused(layers, "named { name: \"lenet\" outputs: 1 }\n",
                {"model.named.outputs: is 1", "at least 2"});
  ExpectRefused(
      "shards: 3", "image { channels: 1 height: 2 width: 2 mean: 0 mean: 1 }",
      {"dir/x.job:7:", "data.image.mean[0]: is one of 2 numbers, but there are 1 channels"});
}

TEST(JobFileTest, LabelSmoothingOutOfRangeIsNamed) {
  for (const char* value : {"1", "-0.1", "nan"}) {
    ExpectRefused("logit_cross_entropy {}",
                  absl::StrCat("logit_cross_entropy { label_smoothing: ", value, " }"),
                  {absl::StrCat("loss.logit_cross_entropy.label_smoothing: is ", value),
                   "from 0 to below 1"});
  }
}

TEST(JobFileTest, CropsAndAugmentationsOutOfRangeAreNamed) {
  const std::string table = "table { path: \"iris.csv\" }";
  ExpectRefused(table, "imagenet { path: \"i\" min_area: 0.2 }",
                {"data.imagenet.min_area: ", "RANDOM_RESIZED"});
  ExpectRefused(table, "imagenet { path: \"i\" training_crop: RANDOM_RESIZED min_area: 1.5 }",
                {"data.imagenet.min_area: is 1.5, must be from 0 to 1"});
  ExpectRefused(table, "imagenet { path: \"i\" readers: 3000000000 }",
                {"data.imagenet.readers: is 3000000000, must be at most 4096"});
  ExpectRefused(table, "imagenet { path: \"i\" training_crop: 9 }",
                {"data.imagenet.training_crop: ", "9"});
  ExpectRefused(table, "imagenet { path: \"i\" tars: \"t.tar\" part: VALIDATION }",
                {"data.imagenet.part: is given, but the images are those of tars"});
  ExpectRefused(table, "imagenet { path: \"i\" tars: \"t-{9..1}.tar\" }",
                {"data.imagenet.tars: ", "{9..1}"});
  const std::string cifar = "cifar10 { files: \"c\" } ";
  const std::string place = "data.image.augmentation.";
  ExpectRefused(table, cifar + "image { augmentation { mirror: 2 } }",
                {place + "mirror: is 2, must be from 0 to 1"});
  ExpectRefused(table, cifar + "image { augmentation { contrast: nan } }",
                {place + "contrast: is nan"});
  ExpectRefused(table, cifar + "image { augmentation { shift: 100000 } }",
                {place + "shift: is 100000"});
  ExpectRefused(table,
                "idx { images: \"i\" labels: \"l\" } image { augmentation { saturation: 0.4 } }",
                {place + "saturation: is 0.4", "1 channel"});
  ExpectRefused(table,
                table + "image { channels: 1 height: 2 width: 2 augmentation { mirror: 0.5 } }",
                {"data.image.augmentation: ", "idx, cifar10 and imagenet"});
}

TEST(JobFileTest, SchedulesAndColumnsThatCannotBeAreNamed) {
  ExpectRefused("batch_size: 8", "batch_size: 8 schedule { step { milestones: 3 } }",
                {"dir/x.job:2:26: schedule.step.factor: is 0"});
  ExpectRefused("batch_size: 8", "batch_size: 8 schedule { cosine { } }",
                {"schedule.cosine.cycle_steps: is 0 or missing"});
  ExpectRefused("batch_size: 8", "batch_size: 8 schedule { cosine { cycle_steps: 5 minimum: 2 } }",
                {"schedule.cosine.minimum: is 2"});
  ExpectRefused("batch_size: 8", "batch_size: 8 schedule { warmup_epochs: -1 }",
                {"dir/x.job:2:26: schedule.warmup_epochs: is -1"});
  ExpectRefused("batch_size: 8", "batch_size: 8 schedule { warmup_epochs: 1 warmup_steps: 3 }",
                {"schedule.warmup_epochs: is 1, but warmup_steps is given too"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 schedule { cosine { cycle_epochs: 5 cycle_steps: 3 } }",
                {"schedule.cosine.cycle_epochs: is 5, but cycle_steps"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 schedule { step { factor: 0.5 milestones: 3 milestone_epochs: 2 } }",
                {"schedule.step.milestone_epochs[0]: is 2, but milestones"});
  ExpectError(
      ParseJobFile(
          absl::StrReplaceAll(
              kJob, {{"shards: 3", "mode: DYNAMIC"},
                     {"batch_size: 8", "batch_size: 8 elastic {} schedule { warmup_epochs: 2 }"}}),
          "dir/x.job"),
      absl::StatusCode::kInvalidArgument, {"schedule: has numbers of epochs", "DYNAMIC"});
  ExpectError(
      ParseJobFile(
          absl::StrReplaceAll(kJob, {{"table { path: \"iris.csv\" }",
                                      "custom { kind: \"mine\" stream_features: 4 }"},
                                     {"target: \"class\"", ""},
                                     {"shards: 3", ""},
                                     {"epochs: 50", "steps: 9 schedule { warmup_epochs: 2 }"}}),
          "dir/x.job"),
      absl::StatusCode::kInvalidArgument, {"schedule: has numbers of epochs", "is a stream"});
  SYNCGRADS_EXPECT_OK(ParseWith("batch_size: 8",
                                "batch_size: 8 schedule { warmup_epochs: 0.5 cosine { "
                                "cycle_epochs: 90 } }"));
  ExpectRefused("{} }", "{} reduction: BY_COLUMN }",
                {"data.weight_column: is missing", "BY_COLUMN"});
  ExpectRefused("shards: 3", "weight_column: \"s\"",
                {"dir/x.job:7:3: data.weight_column: ", "\"s\""});
}

TEST(JobFileTest, ParameterRulesThatCannotBeAreNamed) {
  const auto refused = [](const std::string& rule, std::initializer_list<std::string> parts) {
    ExpectRefused("batch_size: 8", "batch_size: 8 parameter_rules { " + rule + " }", parts);
  };
  refused("learning_rate_factor: 2", {"dir/x.job:2:15: parameter_rules[0]: has no parameters"});
  refused("parameters: \"\" learning_rate_factor: 2",
          {"parameter_rules[0].parameters[0]: is empty"});
  refused("parameters: \"*\"", {"dir/x.job:2:15: parameter_rules[0]: has neither"});
  refused("parameters: \"*\" learning_rate_factor: -1",
          {"dir/x.job:2:49: parameter_rules[0].learning_rate_factor: is -1"});
  refused("parameters: \"*\" learning_rate_factor: nan", {"is nan, must be 0 or from"});
  refused("parameters: \"*\" weight_decay_factor: 1e-7", {"weight_decay_factor: is 1e-07"});
  refused("parameters: \"*\" weight_decay_factor: 0",
          {"weight_decay_factor: is given, but the optimizer adam has no weight decay"});
  ExpectRefused("batch_size: 8", "batch_size: 8 decay_kernels_only: true",
                {"decay_kernels_only: is given, but the optimizer adam has no weight decay"});
  SYNCGRADS_EXPECT_OK(ParseWith(
      "batch_size: 8",
      "batch_size: 8 parameter_rules { parameters: \"dense1/*\" learning_rate_factor: 0 }"));
}

TEST(JobFileTest, SumsThatCannotBeAreNamed) {
  ExpectRefused("batch_size: 8", "batch_size: 8 gradient_reduction: MAX",
                {"dir/x.job:2:15: gradient_reduction: is MAX, must be AVERAGE or SUM"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 gradient_reduction: SUM optimizer_placement: SERVERS",
                {"gradient_reduction: is SUM", "SERVERS"});
  ExpectRefused("batch_size: 8", "batch_size: 8 gradient_reduction: SUM weight_by_samples: true",
                {"gradient_reduction: is SUM", "weight_by_samples"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 gradient_reduction: SUM consistency { local_steps { steps: 4 } }",
                {"gradient_reduction: is SUM", "local_steps"});
  SYNCGRADS_EXPECT_OK(ParseWith("batch_size: 8", "batch_size: 8 gradient_reduction: SUM"));
}

TEST(JobFileTest, AMovingAverageThatCannotBeIsNamed) {
  ExpectRefused("batch_size: 8", "batch_size: 8 ema { }", {"ema.decay: is 0, must be above 0"});
  ExpectRefused("batch_size: 8", "batch_size: 8 ema { decay: 1 }",
                {"dir/x.job:2:21: ema.decay: is 1"});
  ExpectRefused("batch_size: 8", "batch_size: 8 ema { decay: 0.9 model: 7 }", {"ema.model: ", "7"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 ema { decay: 0.9 } consistency { local_steps { steps: 4 } }",
                {"ema: is given, but consistency is not sync"});
  SYNCGRADS_EXPECT_OK(ParseWith("batch_size: 8", "batch_size: 8 ema { decay: 0.9 }"));
}

TEST(JobFileTest, ChecksThatCannotBeAreNamed) {
  ExpectRefused("batch_size: 8", "batch_size: 8 gradient_checks { outlier_factor: 1 }",
                {"dir/x.job:2:33: gradient_checks.outlier_factor: is 1"});
  ExpectRefused("batch_size: 8", "batch_size: 8 gradient_checks { non_finite: 7 }",
                {"gradient_checks.non_finite: ", "7"});
  ExpectRefused("batch_size: 8", "batch_size: 8 clip_norm: -1",
                {"dir/x.job:2:15: clip_norm: is -1"});
  ExpectRefused("batch_size: 8", "batch_size: 8 clip_norm: nan", {"clip_norm: is nan"});
  ExpectRefused("batch_size: 8", "batch_size: 8 elastic { } check_replicas_every: 3",
                {"check_replicas_every: ", "elastic"});
  ExpectRefused(
      "batch_size: 8",
      "batch_size: 8 optimizer_placement: SERVERS clip_norm: 1.5 consistency { async {} }",
      {"dir/x.job:2:44: clip_norm: is 1.5", "async"});
  const std::string dynamic = absl::StrReplaceAll(
      kJob,
      {{"shards: 3", "mode: DYNAMIC"},
       {"batch_size: 8", "batch_size: 8 optimizer_placement: SERVERS elastic {} clip_norm: 1.5"}});
  ExpectError(ParseJobFile(dynamic, "dir/x.job"), absl::StatusCode::kInvalidArgument,
              {"clip_norm: is 1.5", "SERVERS", "DYNAMIC"});
  for (const std::string optimizer : {"lamb", "lars"}) {
    const std::string job =
        absl::StrReplaceAll(kJob, {{"adam {", optimizer + " {"},
                                   {"batch_size: 8",
                                    "batch_size: 8 optimizer_placement: SERVERS consistency { "
                                    "bounded_staleness { bound: 2 } }"}});
    ExpectError(ParseJobFile(job, "dir/x.job"), absl::StatusCode::kInvalidArgument,
                {"optimizer: is " + optimizer, "bounded_staleness"});
  }
  SYNCGRADS_EXPECT_OK(
      ParseWith("batch_size: 8", "batch_size: 8 optimizer_placement: SERVERS clip_norm: 1"));
  SYNCGRADS_EXPECT_OK(
      ParseWith("batch_size: 8",
                "batch_size: 8 clip_norm: 1 check_replicas_every: 3 "
                "gradient_checks { non_finite: SKIP outlier_factor: 20 outliers: ALLOW }"));
}

TEST(JobFileTest, AFileThatIsMissingIsNamed) {
  ExpectError(LoadJobFile("/nowhere/x.job"), absl::StatusCode::kNotFound, {"/nowhere/x.job"});
}

TEST(JobFileTest, TheExamplesAreValid) {
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/digits/digits.job"));
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/imagenet/digits.job"));
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/imagenet/resnet34.job"));
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/iris/iris.job"));
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/tflon/tflon.job"));
  SYNCGRADS_EXPECT_OK(LoadJobFile("examples/imagenet/recipe.job"));
}

TEST(JobFileTest, CompressionThatCannotBeIsNamedWithItsLine) {
  const std::string top_k = "batch_size: 8 compression { push { codec: TOP_K";
  SYNCGRADS_EXPECT_OK(ParseWith("batch_size: 8", top_k + " } }"));
  ExpectRefused("batch_size: 8", top_k + " fraction: 0.7 } }",
                {"dir/x.job:2:29: compression[0].push: ", "fraction of top-k is 0.7"});
  ExpectRefused("batch_size: 8", "batch_size: 8 compression { push { codec: 9 } }",
                {"dir/x.job:2:36: compression[0].push.codec: ", "unknown value 9"});
  ExpectRefused("batch_size: 8", "batch_size: 8 dtype: F64 compression { }",
                {"dir/x.job:2:26: compression[0]: ", "F32 only"});
  ExpectRefused("batch_size: 8",
                "batch_size: 8 optimizer_placement: SERVERS compression { result { codec: INT8 } }",
                {"dir/x.job:2:58: compression[0].result: ", "optimizer_placement is SERVERS"});
}

TEST(JobFileTest, RestartsThatCannotBeAreNamedWithTheirLine) {
  const auto with = [](const std::string& more, const std::string& model = "model {") {
    return ParseJobFile(
        absl::StrReplaceAll(kJob, {{"shards: 3", "shards: 3 validation_every: 5"},
                                   {"model {", model},
                                   {"epochs: 50", "epochs: 50 random_restarts: 2" + more}}),
        "dir/x.job");
  };
  SYNCGRADS_EXPECT_OK(with(""));
  ExpectRefused("epochs: 50", "epochs: 50 random_restarts: 2",
                {"dir/x.job:3:12: random_restarts: is 2", "data.validation_every is 0"});
  const auto refused = absl::StatusCode::kInvalidArgument;
  ExpectError(with(" elastic { }"), refused, {"dir/x.job:3:12: random_restarts: ", "elastic"});
  ExpectError(with(" checkpoint { directory: \"c\" }"), refused,
              {"random_restarts: ", "checkpoints"});
  ExpectError(with("", "model { init_from: \"m\""), refused,
              {"random_restarts: ", "model.init_from"});
}

TEST(JobFileTest, PartsOfAFileNeedAFile) {
  ExpectRefused("model {", "model { init_skip: \"fc.*\"", {"model.init_skip[0]: is given, but"});
  ExpectRefused("model {", "model { init_allow_missing: true",
                {"model.init_allow_missing: is given, but init_from is not"});
  ExpectRefused("model {", "model { init_from: \"m\" init_skip: \"\"",
                {"model.init_skip[0]: is empty"});
}

TEST(JobFileTest, AValidationThatCannotBeIsNamedWithItsLine) {
  const auto expect = [](const std::string& more, std::initializer_list<std::string> texts,
                         const std::string& data = "shards: 3 validation_every: 5") {
    const auto job = ParseJobFile(
        absl::StrReplaceAll(kJob, {{"shards: 3", data}, {"epochs: 50", "epochs: 50 " + more}}),
        "dir/x.job");
    if (texts.size() == 0) {
      SYNCGRADS_EXPECT_OK(job);
    } else {
      ExpectError(job, absl::StatusCode::kInvalidArgument, texts);
    }
  };
  const std::string table = "data { table { path: \"v.csv\" } target: \"class\" ";
  expect("validation {}", {});
  expect("validation { top: 1 top: 3 } early_stopping { patience: 2 metric: TOP1 }", {});
  expect("validation { every_steps: 5 " + table + "} }", {}, "shards: 3");
  expect("validation {}",
         {"dir/x.job:3:12: validation: has no data, and data.validation_every is 0"}, "shards: 3");
  expect("validation { data {} }", {"validation.data: has no source"});
  expect("validation { " + table + "validation_every: 3 } }",
         {"validation.data.validation_every: is 3"});
  expect("validation { " + table + "order: AS_IN_SOURCE } }", {"validation.data: has an order"});
  expect("validation { " + table + "served_from: \"a:1\" } }",
         {"validation.data.served_from[0]: "});
  expect("validation { " + table + "set: \"x\" } }", {"validation.data.set: \"x\" is not among"});
  expect("validation { every_steps: 5 every_epochs: 2 }",
         {"validation.every_steps: is 5 and every_epochs is 2"});
  expect("validation {} elastic {}",
         {"validation.every_steps: is missing, but data.mode is DYNAMIC"},
         "shards: 3 validation_every: 5 mode: DYNAMIC");
  expect("validation { top: 4 }", {"validation.top[0]: is 4, but there are 3 classes"});
  expect("validation { top: 0 }", {"validation.top[0]: is 0"});
  expect("validation { top: 2 top: 2 }", {"validation.top[1]: is 2 twice"});
  for (const std::string mode : {"async {}", "bounded_staleness {}", "quorum { least: 1 }",
                                 "local_steps { steps: 2 }", "best_of { steps: 2 }"}) {
    expect("consistency { " + mode + " } validation {}",
           {"validation: is given, but consistency is " + mode.substr(0, mode.find(' '))});
  }
  expect("early_stopping { patience: 1 }", {"early_stopping: is given, but validation is not"});
  expect("validation {} early_stopping { patience: 1 } elastic {}",
         {"early_stopping: is given, but the job is elastic"});
  expect("validation {} early_stopping {}", {"early_stopping.patience: is 0"});
  expect("validation {} early_stopping { patience: 1 min_delta: -1 }",
         {"early_stopping.min_delta: is -1"});
  expect("checkpoint { directory: \"c\" best: LOSS }",
         {"checkpoint.best: is LOSS, but there is no validation"}, "shards: 3");
}

TEST(JobFileTest, WhatBatchNormAcrossWorkersCannotBeWithIsNamed) {
  const auto with = [](const std::string& more) {
    return ParseJobFile(absl::StrReplaceAll(kJob, {{"model {",
                                                    "model { layers { batch_norm { across_workers: "
                                                    "true } }"},
                                                   {"epochs: 50", "epochs: 50 " + more}}),
                        "dir/x.job");
  };
  SYNCGRADS_EXPECT_OK(with("consistency { sync {} }"));
  const auto refused = absl::StatusCode::kInvalidArgument;
  ExpectError(with("elastic {}"), refused, {"dir/x.job:3:12: elastic: ", "across_workers"});
  ExpectError(with("micro_batches: 2"), refused, {"micro_batches: is 2", "across_workers"});
  ExpectError(with("consistency { local_steps { steps: 2 } }"), refused,
              {"consistency: is not sync", "across_workers"});
}

TEST(JobFileTest, WhatAProgramAddsHasAName) {
  ExpectRefused("logit_cross_entropy {}", "custom {}", {"dir/x.job:13:8: loss.custom.kind"});
  ExpectRefused("logit_cross_entropy {}", "custom { kind: \"k\" targets: 7 }",
                {"loss.custom.targets", "unknown value 7"});
  ExpectRefused("table { path: \"iris.csv\" }", "custom {}", {"dir/x.job:5:3: data.custom.kind"});
  SYNCGRADS_EXPECT_OK(ParseWith("table { path: \"iris.csv\" }", "custom { kind: \"k\" }"));
}

TEST(JobFileTest, ADeeplyNestedFileIsRefused) {
  std::string nested;
  for (int i = 0; i < 40000; ++i) nested += "residual { body {\n";
  ExpectError(ParseJobFile("model { layers { " + nested, "dir/x.job"),
              absl::StatusCode::kInvalidArgument, {"dir/x.job:", "too deep", "100"});
}

TEST(JobFileTest, AHostOfTheDataIsHostAndPort) {
  ExpectRefused("  shards: 3", "  served_from: \"a:1\" served_from: \"b\"",
                {"dir/x.job:7:22: data.served_from[1]: ", "\"b\""});
}

}  // namespace
}  // namespace syncgrads
