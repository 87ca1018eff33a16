#include "worker/job/check_data_sets.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/net/address.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status CheckBucket(const v1::S3Bucket& bucket, const Field& field) {
  if (bucket.bucket().empty()) return field.Member("bucket").Error("is missing: the bucket's name");
  const std::string& endpoint = bucket.endpoint();
  if (!endpoint.empty() && !absl::StartsWith(endpoint, "http://") &&
      !absl::StartsWith(endpoint, "https://")) {
    return field.Member("endpoint")
        .Error(absl::StrCat("\"", endpoint, "\" does not begin with http:// or https://"));
  }
  if (bucket.anonymous() && !bucket.profile().empty()) {
    return field.Member("profile").Error(absl::StrCat(
        "is \"", bucket.profile(), "\", but anonymous is true: anonymous access uses no profile"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDataSets(const v1::JobFile& file, const Field& root) {
  std::set<std::string> names;
  for (int i = 0; i < file.data_sets_size(); ++i) {
    const v1::NamedDataSet& set = file.data_sets(i);
    const Field field = root.Member("data_sets", i);
    if (set.name().empty()) return field.Member("name").Error("is missing");
    if (!names.insert(set.name()).second) {
      return field.Member("name").Error(absl::StrCat("\"", set.name(), "\" is listed twice"));
    }
    if (set.place_case() == v1::NamedDataSet::PLACE_NOT_SET) {
      return field.Error("has no location: give directory or s3");
    }
    if (set.has_s3()) SYNCGRADS_RETURN_IF_ERROR(CheckBucket(set.s3(), field.Member("s3")));
  }
  for (int i = 0; i < file.data().served_from_size(); ++i) {
    const absl::Status address = CheckServerAddress("it", file.data().served_from(i));
    if (!address.ok()) {
      return root.Member("data").Member("served_from", i).Error(address.message());
    }
  }
  const auto check_set = [&](const v1::DataSpec& data, const Field& field) {
    if (data.set().empty() || names.contains(data.set())) return absl::OkStatus();
    return field.Member("set").Error(absl::StrCat(
        "\"", data.set(), "\" is not among the data_sets: ", absl::StrJoin(names, ", ")));
  };
  SYNCGRADS_RETURN_IF_ERROR(check_set(file.data(), root.Member("data")));
  return check_set(file.validation().data(), root.Member("validation").Member("data"));
}

}  // namespace syncgrads
