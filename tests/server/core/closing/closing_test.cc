#include "server/core/closing/closing.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/kernels/reference.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kSeed = 20240801;

// Returns a group of three tensors with the given sizes in one chunk.
GroupPlan ThreeSpans(DType dtype, UpdateRule rule, std::vector<int64_t> sizes = {3, 4, 2}) {
  return PlanOf({"model",
                 {{"a", dtype, {sizes[0]}}, {"b", dtype, {sizes[1]}}, {"c", dtype, {sizes[2]}}},
                 std::move(rule),
                 kMaxChunkBytes});
}

const Chunk& OnlyChunk(const GroupPlan& plan) {
  EXPECT_EQ(plan.layout.chunks().size(), 1u);
  return plan.layout.chunks()[0];
}

Contribution Of(Payload payload, double weight = 1, std::vector<uint32_t> absent = {}) {
  return {false, weight, std::move(absent), std::move(payload)};
}

// Seats the contributions at ranks 0, 1, and so on, in order.
std::vector<Seated> SeatedOf(const std::vector<Contribution>& contributions) {
  std::vector<Seated> seated;
  for (uint32_t rank = 0; rank < contributions.size(); ++rank) {
    seated.push_back({rank, &contributions[rank]});
  }
  return seated;
}

std::unique_ptr<Slot> SlotFor(const Chunk& chunk, size_t optimizer_slots = 0, size_t times = 1) {
  auto slot = std::make_unique<Slot>();
  slot->values = AlignedBuffer(chunk.bytes() * times);
  std::memset(slot->values.data(), 0x5a, slot->values.size());
  for (size_t i = 0; i < optimizer_slots; ++i) {
    slot->optimizer.emplace_back(chunk.bytes());
    std::memset(slot->optimizer.back().data(), 0x5a, chunk.bytes());
  }
  slot->updates.assign(chunk.spans.size(), 77);
  return slot;
}

std::string TextOf(const AlignedBuffer& buffer, size_t bytes) {
  return std::string(reinterpret_cast<const char*>(buffer.data()), bytes);
}

std::string RandomElements(DType dtype, uint64_t elements, std::mt19937_64& random) {
  std::string bytes(elements * SizeOf(dtype), '\0');
  for (uint64_t i = 0; i < elements; ++i) {
    const double value = std::uniform_real_distribution<double>(-4, 4)(random);
    std::byte* const to = reinterpret_cast<std::byte*>(bytes.data());
    switch (dtype) {
      case DType::kF64:
        reference::Store<DType::kF64>(value, to, i);
        break;
      case DType::kF32:
        reference::Store<DType::kF32>(static_cast<float>(value), to, i);
        break;
      case DType::kF16:
        reference::Store<DType::kF16>(static_cast<float>(value), to, i);
        break;
      case DType::kBF16:
        reference::Store<DType::kBF16>(static_cast<float>(value), to, i);
        break;
      case DType::kI64:
        reference::Store<DType::kI64>(static_cast<int64_t>(value * 1e6), to, i);
        break;
      case DType::kI32:
        reference::Store<DType::kI32>(static_cast<int32_t>(value * 1e6), to, i);
        break;
    }
  }
  return bytes;
}

std::vector<size_t> RandomCuts(size_t bytes, std::mt19937_64& random) {
  std::vector<size_t> cuts;
  for (uint64_t left = random() % 5; left > 0; --left) cuts.push_back(random() % (bytes + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

TEST(CloseReductionTest, DoesNotDependOnWherePayloadsAreCut) {
  const GroupPlan plan = ThreeSpans(DType::kF32, Reduction::kAverage);
  const Chunk& chunk = OnlyChunk(plan);
  std::mt19937_64 random(kSeed);
  const std::string first = RandomElements(DType::kF32, 9, random);
  const std::string second = RandomElements(DType::kF32, 9, random);
  std::string want(chunk.bytes(), '\0');
  const WeightedSource sources[] = {{reinterpret_cast<const std::byte*>(first.data()), 3},
                                    {reinterpret_cast<const std::byte*>(second.data()), 5}};
  reference::Reduce(DType::kF32, Reduction::kAverage, sources, 9,
                    reinterpret_cast<std::byte*>(want.data()));
  for (size_t cut = 0; cut <= first.size(); ++cut) {
    for (size_t other = 0; other <= second.size(); ++other) {
      SCOPED_TRACE(absl::StrCat("cut at bytes ", cut, " and ", other, ", seed ", kSeed));
      const std::vector<Contribution> contributions = {Of(PayloadOf(first, {cut}), 3),
                                                       Of(PayloadOf(second, {other, other}), 5)};
      const auto slot = SlotFor(chunk);
      const Closed closed = CloseReduction(chunk, plan.spec.rule, SeatedOf(contributions), *slot);
      ASSERT_EQ(TextOf(slot->values, chunk.bytes()), want);
      ASSERT_EQ(closed.counts, (std::vector<uint32_t>{2, 2, 2}));
      ASSERT_EQ(closed.value_bytes, chunk.bytes());
    }
  }
}

TEST(CloseReductionTest, TakesPayloadsOfSingleBytes) {
  const GroupPlan plan = ThreeSpans(DType::kF64, Reduction::kSum);
  std::vector<size_t> cuts;
  for (size_t cut = 1; cut < 72; ++cut) cuts.push_back(cut);
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<Contribution> contributions = {Of(PayloadOf(BytesOf(values), cuts)),
                                                   Of(PayloadOf(BytesOf(values)))};
  const auto slot = SlotFor(OnlyChunk(plan));
  CloseReduction(OnlyChunk(plan), plan.spec.rule, SeatedOf(contributions), *slot);
  EXPECT_EQ(ValuesOf<double>(TextOf(slot->values, 72)),
            (std::vector<double>{2, 4, 6, 8, 10, 12, 14, 16, 18}));
}

// Random spans are absent. Each span must equal the result of the reference loop over the members
// that contributed to it.
TEST(CloseReductionTest, ReducesEachSpanOverThoseWhoContributedToIt) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", round ", round));
    const DType dtype = kAllDTypes[random() % 6];
    auto reduction = static_cast<Reduction>(1 + random() % 5);
    if (IsInteger(dtype) && reduction == Reduction::kAverage) reduction = Reduction::kSum;
    const auto size = [&random] { return 1 + static_cast<int64_t>(random() % 9); };
    const GroupPlan plan = ThreeSpans(dtype, reduction, {size(), size(), size()});
    const Chunk& chunk = OnlyChunk(plan);
    const size_t element_bytes = SizeOf(dtype);

    std::vector<Contribution> contributions;
    std::vector<std::string> whole;  // each contribution with the elements of its absent spans
    for (uint64_t left = random() % 5; left > 0; --left) {
      whole.push_back(RandomElements(dtype, chunk.elements, random));
      const uint64_t absent_bits = random() % 8;
      Contribution contribution{absent_bits == 7, 1.0 + static_cast<double>(random() % 4), {}, {}};
      std::string payload;
      for (uint32_t s = 0; s < 3; ++s) {
        const Span& span = chunk.spans[s];
        if ((absent_bits >> s & 1) != 0) {
          if (!contribution.skip) contribution.absent_spans.push_back(s);
        } else {
          payload +=
              whole.back().substr(span.chunk_offset * element_bytes, span.elements * element_bytes);
        }
      }
      contribution.payload = PayloadOf(payload, RandomCuts(payload.size(), random));
      contributions.push_back(std::move(contribution));
    }

    std::string want(chunk.bytes(), '\0');
    std::vector<uint32_t> counts(3);
    for (uint32_t s = 0; s < 3; ++s) {
      const size_t offset = chunk.spans[s].chunk_offset * element_bytes;
      std::vector<WeightedSource> sources;
      for (size_t i = 0; i < contributions.size(); ++i) {
        const std::vector<uint32_t>& absent = contributions[i].absent_spans;
        if (contributions[i].skip || std::count(absent.begin(), absent.end(), s) > 0) continue;
        sources.push_back({reinterpret_cast<const std::byte*>(whole[i].data()) + offset,
                           contributions[i].weight});
      }
      counts[s] = static_cast<uint32_t>(sources.size());
      if (sources.empty()) continue;
      reference::Reduce(dtype, reduction, sources, chunk.spans[s].elements,
                        reinterpret_cast<std::byte*>(want.data()) + offset);
    }

    const auto slot = SlotFor(chunk);
    const Closed closed = CloseReduction(chunk, plan.spec.rule, SeatedOf(contributions), *slot);
    ASSERT_EQ(closed.counts, counts);
    const bool anybody = counts != std::vector<uint32_t>(3);
    ASSERT_EQ(closed.value_bytes, anybody ? chunk.bytes() : 0);
    ASSERT_EQ(TextOf(slot->values, chunk.bytes()), want) << NameOf(dtype);
  }
}

TEST(CloseReductionTest, GathersPayloadsInRankOrderAndLeavesOutSkips) {
  const GroupPlan plan = ThreeSpans(DType::kI32, Gather{}, {1, 1, 1});
  const Chunk& chunk = OnlyChunk(plan);
  const std::vector<int32_t> a = {1, 2, 3}, c = {7, 8, 9};
  std::vector<Contribution> contributions;
  contributions.push_back(Of(PayloadOf(BytesOf(a), {1, 5})));
  contributions.push_back({});
  contributions.push_back(Of(PayloadOf(BytesOf(c))));
  EXPECT_EQ(ResultBytes(chunk, plan.spec.rule, 3), 36u);
  const auto slot = SlotFor(chunk, 0, 3);
  const Closed closed = CloseReduction(chunk, plan.spec.rule, SeatedOf(contributions), *slot);
  EXPECT_EQ(closed.contributors, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{2, 2, 2}));
  EXPECT_EQ(closed.value_bytes, 24u);
  EXPECT_EQ(ValuesOf<int32_t>(TextOf(slot->values, 24)), (std::vector<int32_t>{1, 2, 3, 7, 8, 9}));
}

TEST(CloseInitialTest, TakesWhatTheLowestRankThatHasEverythingPushed) {
  const GroupPlan plan = ThreeSpans(DType::kF32, Optimizer(Adam{}), {1, 1, 1});
  const Chunk& chunk = OnlyChunk(plan);
  const std::vector<float> some = {9, 9}, all = {1, 2, 3}, later = {4, 5, 6};
  std::vector<Contribution> contributions;
  contributions.push_back({});
  contributions.push_back(Of(PayloadOf(BytesOf(some)), 1, {1}));
  contributions.push_back(Of(PayloadOf(BytesOf(all), {2, 9})));
  contributions.push_back(Of(PayloadOf(BytesOf(later))));
  const auto slot = SlotFor(chunk, 2);
  const Closed closed = CloseInitial(chunk, SeatedOf(contributions), *slot);
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{1, 1, 1}));
  EXPECT_EQ(ValuesOf<float>(TextOf(slot->values, 12)), all);
  EXPECT_EQ(TextOf(slot->optimizer[0], 12), std::string(12, '\0'));
  EXPECT_EQ(TextOf(slot->optimizer[1], 12), std::string(12, '\0'));
  EXPECT_EQ(slot->updates, (std::vector<uint64_t>{0, 0, 0}));
}

TEST(CloseInitialTest, HasNothingWhenNobodyPushedEverything) {
  const GroupPlan plan = ThreeSpans(DType::kF32, Optimizer(Sgd{}), {1, 1, 1});
  std::vector<Contribution> contributions(2);
  const auto slot = SlotFor(OnlyChunk(plan));
  const Closed closed = CloseInitial(OnlyChunk(plan), SeatedOf(contributions), *slot);
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(closed.value_bytes, 0u);
}

std::vector<Optimizer> EveryOptimizer() {
  return {Sgd{0.1, 0.01}, Momentum{}, Nesterov{}, RmsProp{}, Adagrad{}, Adam{}, AdamW{}};
}

// The expected parameters, optimizer slots, and update counts after each round.
struct Reference {
  Reference(const Chunk& chunk, const Optimizer& optimizer, const std::string& initial)
      : params(initial),
        slots(SlotCount(optimizer), std::string(initial.size(), '\0')),
        updates(chunk.spans.size()) {}

  std::string params;
  std::vector<std::string> slots;
  std::vector<uint64_t> updates;
};

// Applies the average of `gradients` to one span of `state`. Each gradient covers the whole chunk,
// and all have equal weight.
void UpdateSpan(const Chunk& chunk, const Optimizer& optimizer, uint32_t s,
                const std::vector<std::string>& gradients, Reference& state) {
  const Span& span = chunk.spans[s];
  const size_t offset = span.chunk_offset * SizeOf(chunk.dtype);
  std::vector<WeightedSource> sources;
  for (const std::string& gradient : gradients) {
    sources.push_back({reinterpret_cast<const std::byte*>(gradient.data()) + offset, 1});
  }
  std::string average(span.elements * SizeOf(chunk.dtype), '\0');
  reference::Reduce(chunk.dtype, Reduction::kAverage, sources, span.elements,
                    reinterpret_cast<std::byte*>(average.data()));
  std::vector<std::byte*> slots;
  for (std::string& slot : state.slots) {
    slots.push_back(reinterpret_cast<std::byte*>(slot.data()) + offset);
  }
  const std::vector<const std::byte*> old_slots(slots.begin(), slots.end());
  std::byte* const params = reinterpret_cast<std::byte*>(state.params.data()) + offset;
  ApplyUpdate(optimizer, chunk.dtype, ++state.updates[s],
              reinterpret_cast<const std::byte*>(average.data()), span.elements, params, params,
              old_slots, slots);
}

void ExpectIs(const Slot& slot, const Reference& want) {
  ASSERT_EQ(TextOf(slot.values, want.params.size()), want.params);
  for (size_t i = 0; i < want.slots.size(); ++i) {
    ASSERT_EQ(TextOf(slot.optimizer[i], want.params.size()), want.slots[i]) << "slot " << i;
  }
  ASSERT_EQ(slot.updates, want.updates);
}

TEST(CloseUpdateTest, IsApplyUpdateOfTheAverageOverSeveralBlocksAndRounds) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Optimizer& optimizer : EveryOptimizer()) {
      SCOPED_TRACE(absl::StrCat(ToString(optimizer), " of ", NameOf(dtype), ", seed ", kSeed));
      const GroupPlan plan = ThreeSpans(dtype, optimizer, {3000, 1, 2999});
      const Chunk& chunk = OnlyChunk(plan);
      const std::string initial = RandomElements(dtype, chunk.elements, random);
      Reference want(chunk, optimizer, initial);
      std::unique_ptr<Slot> slot = SlotFor(chunk, SlotCount(optimizer));
      CloseInitial(chunk, SeatedOf({Of(PayloadOf(initial))}), *slot);
      for (int round = 1; round <= 3; ++round) {
        std::vector<std::string> gradients;
        std::vector<Contribution> contributions;
        for (int member = 0; member < 3; ++member) {
          gradients.push_back(RandomElements(dtype, chunk.elements, random));
          contributions.push_back(
              Of(PayloadOf(gradients.back(), RandomCuts(gradients.back().size(), random))));
        }
        std::unique_ptr<Slot> next = SlotFor(chunk, SlotCount(optimizer));
        const Closed closed = CloseUpdate(chunk, optimizer, SeatedOf(contributions), *slot, *next);
        for (uint32_t s = 0; s < 3; ++s) UpdateSpan(chunk, optimizer, s, gradients, want);
        EXPECT_EQ(closed.counts, (std::vector<uint32_t>{3, 3, 3}));
        EXPECT_EQ(closed.value_bytes, chunk.bytes());
        ExpectIs(*next, want);
        slot = std::move(next);
      }
    }
  }
}

TEST(CloseUpdateTest, ASpanThatNobodyContributedToStaysAndCountsNoUpdate) {
  std::mt19937_64 random(kSeed);
  for (const Optimizer& optimizer : EveryOptimizer()) {
    SCOPED_TRACE(absl::StrCat(ToString(optimizer), ", seed ", kSeed));
    const GroupPlan plan = ThreeSpans(DType::kF32, optimizer, {2100, 2100, 5});
    const Chunk& chunk = OnlyChunk(plan);
    const std::string initial = RandomElements(DType::kF32, chunk.elements, random);
    Reference want(chunk, optimizer, initial);
    std::unique_ptr<Slot> slot = SlotFor(chunk, SlotCount(optimizer));
    CloseInitial(chunk, SeatedOf({Of(PayloadOf(initial))}), *slot);
    // The span that one member skips in each round; 3 means that it skips none.
    for (uint32_t absent : {1, 3, 0, 2, 3}) {
      const std::string gradient = RandomElements(DType::kF32, chunk.elements, random);
      Contribution contribution;
      contribution.skip = false;
      std::string payload;
      for (uint32_t s = 0; s < 3; ++s) {
        if (s == absent) {
          contribution.absent_spans.push_back(s);
          continue;
        }
        payload += gradient.substr(chunk.spans[s].chunk_offset * 4, chunk.spans[s].elements * 4);
        UpdateSpan(chunk, optimizer, s, {gradient}, want);
      }
      contribution.payload = PayloadOf(payload, RandomCuts(payload.size(), random));
      std::unique_ptr<Slot> next = SlotFor(chunk, SlotCount(optimizer));
      std::vector<Contribution> contributions;
      contributions.push_back(std::move(contribution));
      contributions.push_back({});
      const Closed closed = CloseUpdate(chunk, optimizer, SeatedOf(contributions), *slot, *next);
      for (uint32_t s = 0; s < 3; ++s) EXPECT_EQ(closed.counts[s], s == absent ? 0u : 1u);
      ExpectIs(*next, want);
      slot = std::move(next);
    }
    EXPECT_EQ(slot->updates, (std::vector<uint64_t>{4, 4, 4}));
  }
}

// The second span misses the first round, so it is one update behind in the schedule.
TEST(CloseUpdateTest, EachSpanFollowsTheScheduleByItsOwnUpdates) {
  const Optimizer sgd = Sgd{.learning_rate = 1};
  const RateSchedule schedule = {.decay = StepDecay{{1}, 0.5}};
  const GroupPlan plan = ThreeSpans(DType::kF32, sgd, {1, 1, 1});
  const Chunk& chunk = OnlyChunk(plan);
  std::unique_ptr<Slot> slot = SlotFor(chunk, 0);
  const auto text = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  CloseInitial(chunk, SeatedOf({Of(PayloadOf(text({10, 10, 10})))}), *slot);
  const auto close = [&](const Contribution& contribution) {
    std::unique_ptr<Slot> next = SlotFor(chunk, 0);
    CloseUpdate(chunk, {sgd, {}, schedule, /*factor=*/1, /*workers=*/1}, SeatedOf({contribution}),
                *slot, *next);
    slot = std::move(next);
    return TextOf(slot->values, 3 * sizeof(float));
  };
  Contribution without = Of(PayloadOf(text({1, 1})));
  without.absent_spans = {1};
  EXPECT_EQ(close(without), text({9, 10, 9}));
  EXPECT_EQ(close(Of(PayloadOf(text({1, 1, 1})))), text({8.5, 9, 8.5}));
  EXPECT_EQ(close(Of(PayloadOf(text({1, 1, 1})))), text({8, 8.5, 8}));
}

TEST(CloseUpdateTest, TheLargestNumberOfUpdatesStaysWhatItIs) {
  const uint64_t largest = ~uint64_t{0};
  for (const Optimizer& optimizer : EveryOptimizer()) {
    const GroupPlan plan = ThreeSpans(DType::kF32, optimizer, {1, 1, 1});
    const Chunk& chunk = OnlyChunk(plan);
    const std::vector<float> ones(3, 1);
    // Parameters, slots, and the numbers of updates.
    std::string initial;
    for (int i = 0; i <= SlotCount(optimizer); ++i) initial += BytesOf(ones);
    initial += BytesOf(std::vector<uint64_t>{largest, largest - 1, 7});
    std::unique_ptr<Slot> slot = SlotFor(chunk, SlotCount(optimizer));
    CloseInitial(chunk, SeatedOf({Of(PayloadOf(initial))}), *slot);
    for (int round = 0; round < 2; ++round) {
      std::unique_ptr<Slot> next = SlotFor(chunk, SlotCount(optimizer));
      CloseUpdate(chunk, optimizer, SeatedOf({Of(PayloadOf(BytesOf(ones)))}), *slot, *next);
      slot = std::move(next);
    }
    EXPECT_EQ(slot->updates, (std::vector<uint64_t>{largest, largest, 9}));
  }
}

TEST(CloseUpdateTest, EachTensorHasItsOwnFactors) {
  const Optimizer sgd = Sgd{.learning_rate = 1, .weight_decay = 0.5};
  const TensorFactors factors[] = {
      {}, {.learning_rate = 0.5, .weight_decay = 0}, {.learning_rate = 0}};
  const GroupPlan plan = ThreeSpans(DType::kF32, sgd, {1, 2, 1});
  const Chunk& chunk = OnlyChunk(plan);
  const auto slot = SlotFor(chunk, 0), next = SlotFor(chunk, 0);
  const std::vector<float> start = {8, 8, 8, 8}, gradient = {1, 1, 1, 1};
  CloseInitial(chunk, SeatedOf({Of(PayloadOf(BytesOf(start)))}), *slot);
  CloseUpdate(chunk, {sgd, factors, RateSchedule(), /*factor=*/1, /*workers=*/1},
              SeatedOf({Of(PayloadOf(BytesOf(gradient)))}), *slot, *next);
  EXPECT_EQ(ValuesOf<float>(TextOf(next->values, 16)), (std::vector<float>{3, 7.5, 7.5, 8}));
}

TEST(CloseUpdateTest, StaysWhenEverybodySkips) {
  const GroupPlan plan = ThreeSpans(DType::kF64, Optimizer(Momentum{}), {1, 1, 1});
  const Chunk& chunk = OnlyChunk(plan);
  const std::vector<double> params = {1, 2, 3};
  const auto slot = SlotFor(chunk, 1), next = SlotFor(chunk, 1);
  CloseInitial(chunk, SeatedOf({Of(PayloadOf(BytesOf(params)))}), *slot);
  const std::vector<Contribution> skips(3);
  const Closed closed = CloseUpdate(chunk, Optimizer(Momentum{}), SeatedOf(skips), *slot, *next);
  EXPECT_EQ(closed.counts, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(closed.value_bytes, 24u);
  EXPECT_EQ(ValuesOf<double>(TextOf(next->values, 24)), params);
  EXPECT_EQ(next->updates, (std::vector<uint64_t>{0, 0, 0}));
}

}  // namespace
}  // namespace syncgrads::server
