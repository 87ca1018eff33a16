#include "worker/team/replicas.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"

namespace syncgrads {
namespace {

// The hashes of one worker, in the order of the parameters.
struct Hashes {
  uint32_t rank = 0;
  std::vector<uint64_t> values;
};

template <typename T>
std::string Encode(absl::Span<Parameter<T>* const> parameters, uint32_t rank) {
  std::string bytes = EncodeNumber(rank);
  for (const Parameter<T>* parameter : parameters) {
    absl::StrAppend(&bytes,
                    EncodeNumber(XXH3_64bits(parameter->values.data(), parameter->bytes())));
  }
  return bytes;
}

absl::StatusOr<Hashes> Decode(const std::string& bytes, size_t parameters) {
  const size_t wanted = (1 + parameters) * sizeof(uint64_t);
  if (bytes.size() != wanted) {
    return absl::DataLossError(absl::StrCat("another worker's parameter hashes have ", bytes.size(),
                                            " bytes, must have ", wanted));
  }
  const auto number = [&](size_t i) {
    return DecodeNumber(absl::string_view(bytes).substr(i * sizeof(uint64_t)));
  };
  Hashes hashes;
  hashes.rank = static_cast<uint32_t>(number(0));
  for (size_t i = 0; i < parameters; ++i) hashes.values.push_back(number(1 + i));
  return hashes;
}

uint64_t MostFrequent(absl::Span<const Hashes> all, size_t parameter) {
  uint64_t best = 0;
  int64_t best_count = 0;
  for (const Hashes& one : all) {
    const uint64_t value = one.values[parameter];
    const int64_t count = std::count_if(all.begin(), all.end(), [&](const Hashes& other) {
      return other.values[parameter] == value;
    });
    if (count > best_count) {
      best = value;
      best_count = count;
    }
  }
  return best;
}

}  // namespace

std::string ToString(const ReplicaCheck& check) {
  if (check.replicas == 1) return "there is one replica";
  if (check.identical()) return absl::StrCat("the ", check.replicas, " replicas are bit-identical");
  return absl::StrCat(
      "the ", check.replicas, " replicas differ: ",
      absl::StrJoin(check.differences, ", ", [](std::string* out, const Difference& difference) {
        absl::StrAppend(out, difference.parameter, " on worker ", difference.rank);
      }));
}

template <typename T>
absl::StatusOr<ReplicaCheck> CompareReplicas(absl::Span<Parameter<T>* const> parameters,
                                             Team& team) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                             team.Gather("replicas/hashes", Encode(parameters, team.rank())));
  std::vector<Hashes> all;
  for (const std::string& bytes : gathered) {
    SYNCGRADS_ASSIGN_OR_RETURN(Hashes one, Decode(bytes, parameters.size()));
    all.push_back(std::move(one));
  }
  ReplicaCheck check;
  check.replicas = static_cast<uint32_t>(all.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const uint64_t right = MostFrequent(all, i);
    for (const Hashes& one : all) {
      if (one.values[i] != right) check.differences.push_back({parameters[i]->name, one.rank});
    }
  }
  return check;
}

template absl::StatusOr<ReplicaCheck> CompareReplicas(absl::Span<Parameter<float>* const>, Team&);
template absl::StatusOr<ReplicaCheck> CompareReplicas(absl::Span<Parameter<double>* const>, Team&);

}  // namespace syncgrads
