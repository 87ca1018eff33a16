#include "worker/storage/s3_client.h"

#include <algorithm>
#include <memory>
#include <pugixml.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr int kOk = 200;
constexpr int kPartialContent = 206;
constexpr int kNotModified = 304;
constexpr int kPreconditionFailed = 412;
constexpr int kRangeNotSatisfiable = 416;
// More than a store sends before HttpClient finds it too slow. Otherwise a store that sends a few
// bytes in each attempt would be read for days.
constexpr size_t kLeastProgress = 32 << 10;
constexpr absl::Duration kLongestPause = absl::Seconds(10);
// Limit on a response that is not an object: a list of 1000 names, or an error.
constexpr size_t kMaxDocumentBytes = 8 << 20;
// Limits of a list, which a store sends in pages of at most 1000 names. Without them, a store that
// always names a next page would never end a list.
constexpr int kMaxPages = 1000;
constexpr size_t kMaxListBytes = 64 << 20;

// Percent-encodes `text`. A "/" is not encoded in a path.
std::string Escape(absl::string_view text, bool is_path) {
  std::string escaped;
  for (const char byte : text) {
    if (absl::ascii_isalnum(byte) || absl::StrContains("-_.~", byte) || (is_path && byte == '/')) {
      escaped.push_back(byte);
    } else {
      absl::StrAppend(&escaped, "%",
                      absl::AsciiStrToUpper(absl::StrCat(
                          absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2))));
    }
  }
  return escaped;
}

// Amazon has a host for each bucket; other stores rarely do.
std::string BaseUrl(const S3Options& options) {
  if (options.endpoint.empty()) {
    return absl::StrCat("https://", options.bucket, ".s3.", options.region, ".amazonaws.com");
  }
  return absl::StrCat(absl::StripSuffix(options.endpoint, "/"), "/", Escape(options.bucket, true));
}

bool IsTransient(int code) {
  return code == 408 || code == 429 || code == 500 || (code >= 502 && code <= 504);
}

absl::StatusCode CodeOf(int http) {
  switch (http) {
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case kPreconditionFailed:
      return absl::StatusCode::kAborted;
    default:
      return IsTransient(http) ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal;
  }
}

// Returns the store's description of an error.
std::string Explain(const HttpAnswer& answer) {
  std::string text = absl::StrCat("HTTP ", answer.code);
  pugi::xml_document document;
  if (document.load_buffer(answer.body.data(), answer.body.size())) {
    const pugi::xml_node error = document.child("Error");
    absl::StrAppend(&text, " ", error.child_value("Code"), ": ", error.child_value("Message"));
  }
  return text;
}

// Returns the object's size from the header Content-Range: "bytes 0-99/1234" or "bytes */1234".
absl::StatusOr<uint64_t> ObjectBytes(const HttpAnswer& answer) {
  const auto it = answer.headers.find("content-range");
  uint64_t bytes = 0;
  if (it != answer.headers.end() &&
      absl::SimpleAtoi(it->second.substr(it->second.find('/') + 1), &bytes)) {
    return bytes;
  }
  return absl::InternalError(absl::StrCat("Content-Range is \"",
                                          it == answer.headers.end() ? "" : it->second,
                                          "\", which does not contain the size of the object"));
}

std::string HeaderOf(const HttpAnswer& answer, const std::string& name) {
  const auto it = answer.headers.find(name);
  return it == answer.headers.end() ? "" : it->second;
}

HttpGet GetOverHttp(const S3Options& options) {
  auto http =
      std::make_shared<const HttpClient>(options.credentials, options.region, options.timeouts);
  return [http](const std::string& url, std::vector<std::string> headers, size_t max_body_bytes) {
    return http->Get(url, std::move(headers), max_body_bytes);
  };
}

absl::Status Named(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

S3Client::S3Client(S3Options options)
    : options_(std::move(options)),
      base_url_(BaseUrl(options_)),
      get_(options_.get != nullptr ? options_.get : GetOverHttp(options_)) {}

std::string S3Client::NameOf(const std::string& key) const {
  return absl::StrCat("s3://", options_.bucket, "/", key);
}

absl::StatusOr<HttpAnswer> S3Client::Repeat(const std::string& key,
                                            const std::function<Attempt()>& attempt) const {
  const absl::Time begin = MonotonicNow();
  absl::Duration pause = options_.first_pause;
  int failures = 0;
  while (true) {
    Attempt made = attempt();
    const HttpAnswer& answer = made.answer;
    const bool passing =
        answer.transport.ok() ? IsTransient(answer.code) : absl::IsUnavailable(answer.transport);
    if (!passing) {
      if (!answer.transport.ok()) return Named(NameOf(key), answer.transport);
      if (answer.code / 100 == 2 || answer.code == kNotModified ||
          answer.code == kRangeNotSatisfiable) {
        return std::move(made.answer);
      }
      return absl::Status(CodeOf(answer.code), absl::StrCat(NameOf(key), ": ", Explain(answer)));
    }
    if (made.progress) {
      failures = 0;
      pause = options_.first_pause;
      continue;
    }
    if (++failures >= options_.attempts) {
      return absl::UnavailableError(absl::StrCat(
          NameOf(key), ": ", failures, " attempts in ",
          absl::FormatDuration(absl::Trunc(MonotonicNow() - begin, absl::Milliseconds(1))),
          " have failed; the last error: ",
          answer.transport.ok() ? Explain(answer) : std::string(answer.transport.message())));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::StatusOr<S3Client::Part> S3Client::GetPart(const std::string& key, Range range,
                                                 const Condition& condition) const {
  Part part;
  part.version = condition.version;
  const std::string url = absl::StrCat(base_url_, "/", Escape(key, true));
  bool changed = false;
  const auto attempt = [&]() -> Attempt {
    std::vector<std::string> headers = {
        absl::StrCat("Range: bytes=", range.begin + part.bytes.size(), "-", range.end - 1)};
    if (!part.version.empty()) {
      headers.push_back(absl::StrCat("If-Match: ", part.version));
    } else if (!condition.other_than.empty()) {
      headers.push_back(absl::StrCat("If-None-Match: ", condition.other_than));
    }
    Attempt made;
    made.answer = get_(url, std::move(headers), range.end - range.begin - part.bytes.size());
    if (made.answer.code == kPartialContent) {
      // If the connection has broken, the next attempt begins where this one ended.
      made.progress = made.answer.body.size() >= kLeastProgress;
      part.bytes += made.answer.body;
      // Some stores ignore If-Match.
      const std::string version = HeaderOf(made.answer, "etag");
      if (part.version.empty()) part.version = version;
      changed = changed || version != part.version;
      // If all bytes have come, an error of the connection after them does not matter: there is no
      // byte left that another attempt could request.
      const absl::StatusOr<uint64_t> object = ObjectBytes(made.answer);
      if (object.ok() && range.begin + part.bytes.size() >= std::min(range.end, *object)) {
        made.answer.transport = absl::OkStatus();
      }
    }
    return made;
  };
  SYNCGRADS_ASSIGN_OR_RETURN(const HttpAnswer answer, Repeat(key, attempt));
  if (changed) {
    return absl::AbortedError(absl::StrCat(NameOf(key), " has changed while it was being read"));
  }
  // 304 is an answer only to If-None-Match.
  part.unchanged = answer.code == kNotModified && !condition.other_than.empty();
  if (part.unchanged) return part;
  if (answer.code == kOk && range.begin == 0) {
    // The store does not support ranges: this is the whole object.
    part.bytes = answer.body;
    part.object_bytes = answer.body.size();
    part.version = HeaderOf(answer, "etag");
    if (!condition.version.empty() && part.version != condition.version) {
      return absl::AbortedError(absl::StrCat(NameOf(key), " no longer has the requested version"));
    }
    return part;
  }
  if (answer.code != kPartialContent && answer.code != kRangeNotSatisfiable) {
    return absl::InternalError(absl::StrCat(NameOf(key), ": HTTP ", answer.code,
                                            " in response to a range request, must be 206"));
  }
  const absl::StatusOr<uint64_t> bytes = ObjectBytes(answer);
  // Some stores do not send the size if the object ends before the range.
  if (!bytes.ok() && answer.code != kRangeNotSatisfiable) return Named(NameOf(key), bytes.status());
  part.object_bytes = bytes.value_or(range.begin);
  const uint64_t end = std::min(range.end, part.object_bytes);
  if (part.bytes.size() != end - std::min(range.begin, end)) {
    return absl::InternalError(absl::StrCat(NameOf(key), ": bytes ", range.begin, " to ", end,
                                            " were requested, but ", part.bytes.size(),
                                            " bytes were received"));
  }
  return part;
}

absl::StatusOr<S3Client::Listing> S3Client::List(const std::string& prefix) const {
  Listing listing;
  std::string from;
  int pages = 0;
  size_t bytes = 0;
  do {
    if (++pages > kMaxPages) {
      return absl::ResourceExhaustedError(
          absl::StrCat(NameOf(prefix), ": the list has more than ", kMaxPages, " pages"));
    }
    // The parameters are sorted, as the signature requires.
    const std::string url = absl::StrCat(
        base_url_, "?",
        from.empty() ? "" : absl::StrCat("continuation-token=", Escape(from, false), "&"),
        "delimiter=%2F&list-type=2&prefix=", Escape(prefix, false));
    SYNCGRADS_ASSIGN_OR_RETURN(const HttpAnswer answer, Repeat(prefix, [&]() -> Attempt {
                                 return {get_(url, {}, kMaxDocumentBytes)};
                               }));
    pugi::xml_document document;
    const pugi::xml_parse_result parsed =
        document.load_buffer(answer.body.data(), answer.body.size());
    const pugi::xml_node result = document.child("ListBucketResult");
    if (!parsed || !result) {
      return absl::InternalError(
          absl::StrCat(NameOf(prefix), ": malformed list: ", parsed.description()));
    }
    for (const pugi::xml_node common : result.children("CommonPrefixes")) {
      absl::string_view directory = common.child_value("Prefix");
      absl::ConsumePrefix(&directory, prefix);
      absl::ConsumeSuffix(&directory, "/");
      bytes += directory.size();
      if (bytes > kMaxListBytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat(NameOf(prefix), ": the names of its directories have more than ",
                         kMaxListBytes, " bytes"));
      }
      listing.directories.emplace_back(directory);
    }
    listing.empty = listing.empty && listing.directories.empty() && !result.child("Contents");
    from = result.child_value("NextContinuationToken");
  } while (!from.empty());
  return listing;
}

}  // namespace syncgrads
