// What a worker reports about its training is converted to bytes and back, and is checked.

#include "common/contract/figures.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/common/proto_fields.h"

namespace syncgrads {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TrainingFigures EveryField() {
  return {.step = uint64_t{1} << 40,
          .loss = -0.25,
          .learning_rate = 0.001,
          .device = "NVIDIA H200",
          .times = {.read = absl::Microseconds(1),
                    .compute = absl::Hours(1000),
                    .push = absl::Microseconds(3),
                    .wait = absl::Microseconds(4),
                    .apply = absl::Microseconds(5)},
          .validation = Validation{7, {{"loss", 0.5}, {"accuracy", 0.75}}}};
}

TEST(FiguresTest, EveryFieldComesBackAsItWas) {
  const v1::TrainingFigures proto = ToProto(EveryField());
  EXPECT_EQ(UnsetIn(proto), std::set<std::string>());
  EXPECT_EQ(UnsetIn(proto.times()), std::set<std::string>());
  EXPECT_EQ(UnsetIn(proto.validation()), std::set<std::string>());
  v1::TrainingFigures received;
  ASSERT_TRUE(received.ParseFromString(proto.SerializeAsString()));
  const absl::StatusOr<TrainingFigures> figures = FromProto(received);
  ASSERT_THAT(figures, IsOk());
  EXPECT_TRUE(*figures == EveryField());
}

TEST(FiguresTest, WhatIsNotSetRemainsNotSet) {
  const absl::StatusOr<TrainingFigures> figures = FromProto(ToProto(TrainingFigures()));
  ASSERT_THAT(figures, IsOk());
  EXPECT_TRUE(*figures == TrainingFigures());
  EXPECT_FALSE(figures->loss.has_value());
}

TEST(FiguresTest, WhatIsNotFiniteTooLongOrTooMuchIsRefusedAndNamed) {
  const double infinity = std::numeric_limits<double>::infinity();
  struct Bad {
    std::function<void(v1::TrainingFigures&)> set;
    std::string field;
    std::string value;
  };
  const std::vector<Bad> all = {
      {[](auto& figures) { figures.set_loss(std::nan("")); }, "the loss", "nan"},
      {[&](auto& figures) { figures.set_learning_rate(infinity); }, "learning rate", "inf"},
      {[](auto& figures) { figures.set_device(std::string(65, 'x')); }, "device", "65"},
      {[](auto& figures) { figures.set_device("a\nb"); }, "device", "\\x0a"},
      {[&](auto& figures) {
         figures.mutable_validation()->mutable_scores(1)->set_value(-infinity);
       },
       "accuracy", "-inf"},
      {[](auto& figures) { figures.mutable_validation()->mutable_scores(0)->clear_name(); },
       "a score", "has no name"},
      {[](auto& figures) {
         figures.mutable_validation()->mutable_scores(0)->set_name(std::string(33, 'x'));
       },
       "the name of a score", "33"},
      {[](auto& figures) {
         for (int i = 0; i < 7; ++i) {
           figures.mutable_validation()->add_scores()->set_name(absl::StrCat(i));
         }
       },
       "9 scores", "8"}};
  for (const Bad& bad : all) {
    v1::TrainingFigures figures = ToProto(EveryField());
    bad.set(figures);
    ExpectError(FromProto(figures), kInvalid, {bad.field, bad.value});
  }
}

TEST(FiguresTest, ATimeThatIsTooLongForTheClockIsTheLongest) {
  v1::TrainingFigures proto;
  proto.mutable_times()->set_wait_us(~uint64_t{0});
  const absl::StatusOr<TrainingFigures> figures = FromProto(proto);
  ASSERT_THAT(figures, IsOk());
  EXPECT_EQ(ToProto(*figures).times().wait_us(), ~uint64_t{0} >> 1);
}

TEST(FiguresTest, ANegativeTimeIsRefused) {
  ExpectError(CheckFigures({.times = {.push = -absl::Seconds(1)}}), kInvalid, {"push", "-1s"});
}

}  // namespace
}  // namespace syncgrads
