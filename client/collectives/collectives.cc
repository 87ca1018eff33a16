#include "client/collectives/collectives.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/reduction_name.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// Returns the description of a group with one tensor.
GroupSpec OneTensor(std::string name, DType dtype, size_t elements, UpdateRule rule) {
  GroupSpec spec;
  spec.tensors = {{name, dtype, {static_cast<int64_t>(elements)}}};
  spec.name = std::move(name);
  spec.rule = rule;
  spec.non_finite = OnBad::kAllow;
  return spec;
}

absl::Span<const std::byte> BytesOf(ConstArray array) {
  return absl::MakeConstSpan(static_cast<const std::byte*>(array.data),
                             array.elements * SizeOf(array.dtype));
}

absl::Span<std::byte> BytesOf(Array array) {
  return absl::MakeSpan(static_cast<std::byte*>(array.data), array.elements * SizeOf(array.dtype));
}

absl::Status CheckArray(absl::string_view name, absl::string_view which, ConstArray array) {
  if (array.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(which, " of \"", name, "\" is null"));
  }
  if (array.elements == 0) {
    return absl::InvalidArgumentError(absl::StrCat(which, " of \"", name, "\" has 0 elements"));
  }
  return absl::OkStatus();
}

// Checks an operation whose result has as many elements as its input.
absl::Status CheckSame(absl::string_view name, ConstArray input, ConstArray output) {
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "output", output));
  if (input.dtype == output.dtype && input.elements == output.elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" has an input of ", input.elements, " ", syncgrads::NameOf(input.dtype),
      " and an output of ", output.elements, " ", syncgrads::NameOf(output.dtype)));
}

absl::StatusOr<uint32_t> CountOne(GroupRounds& rounds) {
  return rounds.CountContributors(TensorId{0}).most;
}

// What a Pending of this client holds.
class Operation : public Pending::Operation {
 public:
  Operation(std::shared_ptr<NamedCollective> collective, std::shared_ptr<CollectiveCall> call)
      : collective_(std::move(collective)), call_(std::move(call)) {}

  bool Ready() const override { return collective_->IsReady(*call_); }
  absl::StatusOr<uint32_t> Wait(absl::Duration timeout) override {
    return collective_->Wait(*call_, timeout);
  }

 private:
  const std::shared_ptr<NamedCollective> collective_;
  const std::shared_ptr<CollectiveCall> call_;
};

// Gathers, and folds what was gathered when it is waited for.
class FoldOperation : public Pending::Operation {
 public:
  FoldOperation(std::unique_ptr<Pending::Operation> gather,
                std::shared_ptr<const std::vector<std::byte>> gathered, Fold fold,
                absl::Span<std::byte> output)
      : gather_(std::move(gather)),
        gathered_(std::move(gathered)),
        fold_(std::move(fold)),
        output_(output) {}

  bool Ready() const override { return gather_->Ready(); }
  absl::StatusOr<uint32_t> Wait(absl::Duration timeout) override {
    SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t count, gather_->Wait(timeout));
    if (std::exchange(is_folded_, true)) return count;
    for (uint32_t c = 0; c < count; ++c) {
      // The index of a vector is checked by an assertion.
      const std::byte* next = &(*gathered_)[c * output_.size()];
      if (c == 0) {
        std::memcpy(output_.data(), next, output_.size());
      } else {
        fold_(output_.data(), next);
      }
    }
    return count;
  }

 private:
  const std::unique_ptr<Pending::Operation> gather_;
  const std::shared_ptr<const std::vector<std::byte>> gathered_;
  const Fold fold_;
  const absl::Span<std::byte> output_;
  bool is_folded_ = false;
};

}  // namespace

Collectives::Started Collectives::Start(GroupSpec spec, CollectiveCall call) {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(Validate(spec));
  std::shared_ptr<NamedCollective> collective;
  {
    MutexLock lock(mutex_);
    std::shared_ptr<NamedCollective>& found = by_name_[spec.name];
    if (found == nullptr || found->refused()) {
      found = std::make_shared<NamedCollective>(std::move(spec), session_);
    } else {
      SYNCGRADS_RETURN_IF_ERROR(CheckAgreement(spec, found->spec(), "an earlier call"));
    }
    collective = found;
  }
  auto shared = std::make_shared<CollectiveCall>(std::move(call));
  SYNCGRADS_RETURN_IF_ERROR(collective->Begin(shared));
  return std::make_unique<Operation>(std::move(collective), std::move(shared));
}

absl::Status Collectives::CheckRoot(uint32_t root) const {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  if (root < session_.world_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root ", root, " is out of range among ", session_.world_size(), " members"));
}

Collectives::Started Collectives::AllReduce(absl::string_view name, ConstArray input, Array output,
                                            Reduction reduction, std::shared_ptr<void> memory) {
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "input", input));
  SYNCGRADS_RETURN_IF_ERROR(CheckSame(name, input, output));
  CollectiveCall call;
  call.buffers = {{false, BytesOf(input), BytesOf(output)}};
  call.conclude = CountOne;
  call.memory = std::move(memory);
  return Start(OneTensor(absl::StrCat("all_reduce/", NameOf(reduction), "/", name), input.dtype,
                         input.elements, reduction),
               std::move(call));
}

Collectives::Started Collectives::AllReduceSkip(absl::string_view name, Array output,
                                                Reduction reduction) {
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "output", output));
  CollectiveCall call;
  call.buffers = {{true, {}, BytesOf(output)}};
  call.conclude = CountOne;
  return Start(OneTensor(absl::StrCat("all_reduce/", NameOf(reduction), "/", name), output.dtype,
                         output.elements, reduction),
               std::move(call));
}

Collectives::Started Collectives::StartGather(std::string group, ConstArray mine, bool skip,
                                              absl::Span<std::byte> output,
                                              std::shared_ptr<void> memory) {
  CollectiveCall call;
  call.buffers = {{skip, skip ? absl::Span<const std::byte>() : BytesOf(mine), output}};
  call.memory = std::move(memory);
  call.conclude = [](GroupRounds& rounds) -> absl::StatusOr<uint32_t> {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, rounds.GatheredRanks());
    return static_cast<uint32_t>(ranks.size());
  };
  return Start(OneTensor(std::move(group), mine.dtype, mine.elements, Gather()), std::move(call));
}

Collectives::Started Collectives::AllGather(absl::string_view name, ConstArray input,
                                            Array output) {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "input", input));
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "output", output));
  const size_t room = size_t{session_.world_size()} * input.elements;
  if (input.dtype != output.dtype || output.elements < room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "all-gather \"", name, "\" of ", input.elements, " ", syncgrads::NameOf(input.dtype),
        " from each of ", session_.world_size(), " members needs an output of ", room,
        ", but has one of ", output.elements, " ", syncgrads::NameOf(output.dtype)));
  }
  return StartGather(absl::StrCat("all_gather/", name), input, /*skip=*/false, BytesOf(output),
                     nullptr);
}

Collectives::Started Collectives::StartFold(absl::string_view name, ConstArray mine, bool skip,
                                            Array output, Fold fold) {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  auto gathered =
      std::make_shared<std::vector<std::byte>>(session_.world_size() * BytesOf(output).size());
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Pending::Operation> gather,
                             StartGather(absl::StrCat("all_reduce_with/", name), mine, skip,
                                         absl::MakeSpan(*gathered), gathered));
  return std::make_unique<FoldOperation>(std::move(gather), std::move(gathered), std::move(fold),
                                         BytesOf(output));
}

Collectives::Started Collectives::AllReduceWith(absl::string_view name, ConstArray input,
                                                Array output, Fold fold) {
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "input", input));
  SYNCGRADS_RETURN_IF_ERROR(CheckSame(name, input, output));
  return StartFold(name, input, /*skip=*/false, output, std::move(fold));
}

Collectives::Started Collectives::AllReduceWithSkip(absl::string_view name, Array output,
                                                    Fold fold) {
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "output", output));
  return StartFold(name, output, /*skip=*/true, output, std::move(fold));
}

Collectives::Started Collectives::Reduce(absl::string_view name, ConstArray input, Array output,
                                         Reduction reduction, uint32_t root) {
  SYNCGRADS_RETURN_IF_ERROR(CheckRoot(root));
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "input", input));
  const bool is_root = session_.rank() == root;
  if (is_root) SYNCGRADS_RETURN_IF_ERROR(CheckSame(name, input, output));
  CollectiveCall call;
  call.buffers = {{false, BytesOf(input), is_root ? BytesOf(output) : absl::Span<std::byte>()}};
  call.conclude = CountOne;
  return Start(OneTensor(absl::StrCat("reduce/", NameOf(reduction), "/", name), input.dtype,
                         input.elements, reduction),
               std::move(call));
}

Collectives::Started Collectives::StartBroadcast(std::string group,
                                                 absl::Span<const NamedTensor> tensors,
                                                 uint32_t root) {
  SYNCGRADS_RETURN_IF_ERROR(CheckRoot(root));
  const bool is_root = session_.rank() == root;
  GroupSpec spec;
  spec.name = std::move(group);
  spec.rule = Reduction::kSum;  // of one contribution: the result is that one, bit by bit
  spec.non_finite = OnBad::kAllow;
  CollectiveCall call;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.data == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("null data for tensor \"", tensor.spec.name, "\" of \"", spec.name, "\""));
    }
    spec.tensors.push_back(tensor.spec);
    const absl::Span<std::byte> bytes =
        absl::MakeSpan(static_cast<std::byte*>(tensor.data), tensor.spec.bytes());
    if (is_root) {
      call.buffers.push_back({false, bytes, {}});
    } else {
      call.buffers.push_back({true, {}, bytes});
    }
  }
  call.conclude = [root](GroupRounds& rounds) -> absl::StatusOr<uint32_t> {
    const GroupSpec& spec = rounds.plan().spec;
    for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
      const Contributors count = rounds.CountContributors(TensorId{t});
      if (count.least == 1 && count.most == 1) continue;
      if (count.most == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("\"", spec.name, "\" from root ", root,
                         ": no member took part as the root: if it has died, start the job again; "
                         "otherwise give the same root on all members"));
      }
      if (count.least == count.most) {
        return absl::FailedPreconditionError(
            absl::StrCat("\"", spec.name, "\" from root ", root, ": ", count.most,
                         " members took part as the root, but there must be one: give the same "
                         "root on all members"));
      }
      return absl::AbortedError(absl::StrCat("\"", spec.name, "\" from root ", root,
                                             ": the root was lost during the operation"));
    }
    return 1;
  };
  return Start(std::move(spec), std::move(call));
}

Collectives::Started Collectives::Broadcast(absl::string_view name, Array values, uint32_t root) {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(CheckArray(name, "array", values));
  const std::string group = absl::StrCat("broadcast/", name);
  const NamedTensor tensor{{group, values.dtype, {static_cast<int64_t>(values.elements)}},
                           values.data};
  return StartBroadcast(group, absl::MakeConstSpan(&tensor, 1), root);
}

Collectives::Started Collectives::BroadcastAll(absl::string_view name,
                                               absl::Span<const NamedTensor> tensors,
                                               uint32_t root) {
  return StartBroadcast(absl::StrCat("broadcast_all/", name), tensors, root);
}

Collectives::Started Collectives::Barrier(absl::string_view name) {
  CollectiveCall call;
  call.buffers = {{true, {}, {}}};
  call.conclude = CountOne;
  return Start(OneTensor(absl::StrCat("barrier/", name), DType::kI32, 1, Reduction::kSum),
               std::move(call));
}

}  // namespace syncgrads::client
