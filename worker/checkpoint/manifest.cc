#include "worker/checkpoint/manifest.h"

// Makes XXH3_state_t a complete type, so that it can be a local variable.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

using nlohmann::json;

constexpr uint64_t kFormat = 1;
// No manifest is nested more deeply. The limit keeps Dump, which is recursive, within the stack.
constexpr int kMaxDepth = 16;

std::string Hex(uint64_t checksum) { return absl::StrCat(absl::Hex(checksum, absl::kZeroPad16)); }

std::string Dump(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

absl::Status Damaged(const std::string& path, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat(path, ": ", problem));
}

// Reads the members of a JSON object. Keeps the first error, which names the member.
class Members {
 public:
  Members(const json& object, const std::string& path) : object_(object), path_(path) {}

  template <typename T>
  void Read(const char* name, T& out) {
    const auto found = object_.find(name);
    if (found == object_.end()) return Note(absl::StrCat("has no \"", name, "\""));
    if constexpr (std::is_same_v<T, std::string>) {
      if (!found->is_string()) return NoteKind(name, "string", *found);
    } else if constexpr (std::is_same_v<T, double>) {
      if (!found->is_number()) return NoteKind(name, "number", *found);
    } else if constexpr (std::is_same_v<T, json>) {
    } else {
      if (!found->is_number_unsigned()) return NoteKind(name, "whole number", *found);
      const uint64_t number = found->get<uint64_t>();
      if (static_cast<T>(number) != number) {
        return NoteKind(name, sizeof(T) == 4 ? "number of 32 bits" : "number of 64 bits", *found);
      }
    }
    out = found->get<T>();
  }

  void ReadChecksum(const char* name, uint64_t& out) {
    std::string text;
    Read(name, text);
    if (status_.ok() && !absl::SimpleHexAtoi(text, &out)) NoteKind(name, "checksum", text);
  }

  const absl::Status& status() const { return status_; }

 private:
  void Note(absl::string_view problem) {
    if (status_.ok()) status_ = Damaged(path_, problem);
  }
  void NoteKind(const char* name, const char* kind, const json& value) {
    Note(absl::StrCat("\"", name, "\" is not a ", kind, ": ", Dump(value, -1)));
  }

  const json& object_;
  const std::string& path_;
  absl::Status status_;
};

json Body(const Manifest& manifest) {
  json body = {{"format", kFormat},
               {"job", manifest.job},
               {"step", manifest.step},
               {"dtype", manifest.dtype},
               {"place", manifest.place},
               {"optimizer", manifest.optimizer},
               {"seed", manifest.seed},
               {"workers", manifest.workers},
               {"shards", manifest.shards},
               {"partition", manifest.partition},
               {"data", json::array()},
               {"evaluation", manifest.evaluation},
               {"written_at", manifest.written_at},
               {"files", json::array()}};
  for (const DataSegment& segment : manifest.data) {
    body["data"].push_back({{"workers", segment.workers},
                            {"batch_size", segment.batch_size},
                            {"steps", segment.steps},
                            {"epochs", segment.epochs}});
  }
  if (manifest.learning_rate_factor != 1) {
    body["learning_rate_factor"] = manifest.learning_rate_factor;
  }
  // JSON has no NaN. A model that has diverged has no score.
  if (manifest.score.has_value() && std::isfinite(*manifest.score)) {
    body["score"] = *manifest.score;
  }
  if (!manifest.best.empty()) body["best"] = manifest.best;
  if (!manifest.stopping_metric.empty()) body["stopping_metric"] = manifest.stopping_metric;
  for (const ManifestFile& file : manifest.files) {
    body["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", Hex(file.checksum)}});
  }
  return body;
}

// Whether `name` is the name of a file in a directory, rather than a path that may lead out of it.
bool IsNameOfFile(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

absl::Status ReadLists(const json& body, const std::string& path, Manifest& manifest) {
  Members members(body, path);
  json data, evaluation, files;
  members.Read("data", data);
  members.Read("evaluation", evaluation);
  members.Read("files", files);
  SYNCGRADS_RETURN_IF_ERROR(members.status());
  for (const json& value : data) {
    DataSegment& segment = manifest.data.emplace_back();
    Members of_segment(value, path);
    of_segment.Read("workers", segment.workers);
    of_segment.Read("batch_size", segment.batch_size);
    of_segment.Read("steps", segment.steps);
    if (value.contains("epochs")) of_segment.Read("epochs", segment.epochs);
    SYNCGRADS_RETURN_IF_ERROR(of_segment.status());
    if (segment.workers == 0 || segment.batch_size == 0) {
      return Damaged(path,
                     absl::StrCat("has steps of ", segment.workers, " workers with batch_size ",
                                  segment.batch_size, ", both must be at least 1"));
    }
  }
  for (const auto& [name, value] : evaluation.items()) {
    // A number that is not finite is null in JSON; it is left out.
    if (value.is_number()) manifest.evaluation[name] = value.get<double>();
  }
  for (const json& value : files) {
    ManifestFile& file = manifest.files.emplace_back();
    Members of_file(value, path);
    of_file.Read("name", file.name);
    of_file.Read("bytes", file.bytes);
    of_file.ReadChecksum("xxh3", file.checksum);
    SYNCGRADS_RETURN_IF_ERROR(of_file.status());
    if (!IsNameOfFile(file.name)) {
      return Damaged(path, absl::StrCat("names the file \"", absl::CEscape(file.name),
                                        "\", which is not in the checkpoint's directory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t ChecksumOf(absl::Span<const absl::string_view> pieces) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const absl::string_view piece : pieces) {
    XXH3_64bits_update(&state, piece.data(), piece.size());
  }
  return XXH3_64bits_digest(&state);
}

std::string ToJson(const Manifest& manifest) {
  const json body = Body(manifest);
  const json whole = {{"checkpoint", body}, {"xxh3", Hex(ChecksumOf({Dump(body, -1)}))}};
  return Dump(whole, 1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text, const std::string& path) {
  bool is_deep = false;
  const auto keep = [&is_deep](int depth, json::parse_event_t, json&) {
    is_deep = is_deep || depth > kMaxDepth;
    return !is_deep;
  };
  const json whole = json::parse(text.begin(), text.end(), keep, /*allow_exceptions=*/false);
  if (is_deep) return Damaged(path, absl::StrCat("is nested more than ", kMaxDepth, " deep"));
  if (!whole.is_object() || !whole.contains("checkpoint") || !whole["checkpoint"].is_object()) {
    return Damaged(path, absl::StrCat("is not a manifest (", text.size(), " bytes)"));
  }
  const json& body = whole["checkpoint"];
  Members outer(whole, path);
  uint64_t recorded = 0;
  outer.ReadChecksum("xxh3", recorded);
  SYNCGRADS_RETURN_IF_ERROR(outer.status());
  const uint64_t checksum = ChecksumOf({Dump(body, -1)});
  if (checksum != recorded) {
    return Damaged(path,
                   absl::StrCat("has checksum ", Hex(checksum), ", but records ", Hex(recorded)));
  }
  Manifest manifest;
  Members members(body, path);
  uint64_t format = 0;
  members.Read("format", format);
  if (members.status().ok() && format != kFormat) {
    return Damaged(path, absl::StrCat("has format ", format, ", but this program reads ", kFormat));
  }
  members.Read("job", manifest.job);
  members.Read("step", manifest.step);
  members.Read("dtype", manifest.dtype);
  members.Read("place", manifest.place);
  members.Read("optimizer", manifest.optimizer);
  members.Read("seed", manifest.seed);
  members.Read("workers", manifest.workers);
  members.Read("shards", manifest.shards);
  members.Read("written_at", manifest.written_at);
  // Older programs cut rows into contiguous shards, and did not write this.
  if (body.contains("partition")) members.Read("partition", manifest.partition);
  if (body.contains("learning_rate_factor")) {
    members.Read("learning_rate_factor", manifest.learning_rate_factor);
  }
  if (body.contains("score")) members.Read("score", manifest.score.emplace());
  if (body.contains("best")) members.Read("best", manifest.best);
  if (body.contains("stopping_metric")) members.Read("stopping_metric", manifest.stopping_metric);
  SYNCGRADS_RETURN_IF_ERROR(members.status());
  SYNCGRADS_RETURN_IF_ERROR(ReadLists(body, path, manifest));
  return manifest;
}

}  // namespace syncgrads
