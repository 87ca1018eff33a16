#include "worker/storage/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncgrads {
namespace {

// The SHA-256 of an empty body.
constexpr absl::string_view kHashOfNothing =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// The body of an error may be longer than that of the requested bytes.
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr long kFirstErrorCode = 400;
// A store that sends less than this would hold a reader for hours.
constexpr long kLeastBytesPerSecond = 1024;

// The state of a request's callbacks.
struct Receiver {
  CURL* easy;
  HttpAnswer& answer;
  size_t max_body_bytes;
  bool too_long = false;
  bool headers_ended = false;
};

size_t ReceiveHeader(char* bytes, size_t size, size_t count, void* user) {
  auto& receiver = *static_cast<Receiver*>(user);
  auto& headers = receiver.answer.headers;
  const absl::string_view line(bytes, size * count);
  // A status line begins a new response. The ones before it, such as "100 Continue", are
  // dropped.
  if (absl::StartsWith(line, "HTTP/")) headers.clear();
  receiver.headers_ended = line == "\r\n";
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos) {
    headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return line.size();
}

size_t ReceiveBody(char* bytes, size_t size, size_t count, void* user) {
  auto& receiver = *static_cast<Receiver*>(user);
  const size_t length = size * count;
  long code = 0;
  curl_easy_getinfo(receiver.easy, CURLINFO_RESPONSE_CODE, &code);
  const size_t allowed = code >= kFirstErrorCode ? std::max(receiver.max_body_bytes, kMaxErrorBytes)
                                                 : receiver.max_body_bytes;
  if (receiver.answer.body.size() + length > allowed) {
    receiver.too_long = true;
    return 0;
  }
  receiver.answer.body.append(bytes, length);
  return length;
}

// Whether a retry may succeed.
bool IsTransient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_WEIRD_SERVER_REPLY:
      return true;
    default:
      return false;
  }
}

}  // namespace

class HttpClient::Handle {
 public:
  Handle() : easy_(curl_easy_init()) {}
  ~Handle() { curl_easy_cleanup(easy_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  CURL* get() const { return easy_; }

 private:
  CURL* const easy_;
};

HttpClient::HttpClient(std::optional<AwsCredentials> credentials, std::string region,
                       const HttpTimeouts& timeouts)
    : credentials_(std::move(credentials)), region_(std::move(region)), timeouts_(timeouts) {
  // libcurl counts the calls. The first call in a process must have returned before others.
  curl_global_init(CURL_GLOBAL_DEFAULT);
}

HttpClient::~HttpClient() {
  idle_.clear();
  curl_global_cleanup();
}

std::unique_ptr<HttpClient::Handle> HttpClient::Take() const {
  MutexLock lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>();
  std::unique_ptr<Handle> handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void HttpClient::Return(std::unique_ptr<Handle> handle) const {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(handle));
}

HttpAnswer HttpClient::Get(const std::string& url, std::vector<std::string> headers,
                           size_t max_body_bytes) const {
  HttpAnswer answer;
  std::unique_ptr<Handle> handle = Take();
  CURL* const easy = handle->get();
  if (easy == nullptr) {
    answer.transport = absl::InternalError("libcurl cannot create a handle");
    return answer;
  }
  curl_slist* list = nullptr;
  const absl::Cleanup cleanup = [&] {
    // Removes what refers to this call. The connection stays open.
    curl_easy_reset(easy);
    curl_slist_free_all(list);
    Return(std::move(handle));
  };
  Receiver receiver{easy, answer, max_body_bytes};
  char error[CURL_ERROR_SIZE] = "";
  if (credentials_.has_value()) {
    curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, absl::StrCat("aws:amz:", region_, ":s3").c_str());
    curl_easy_setopt(easy, CURLOPT_USERNAME, credentials_->access_key.c_str());
    curl_easy_setopt(easy, CURLOPT_PASSWORD, credentials_->secret_key.c_str());
    // libcurl signs this header, but the caller has to send it.
    headers.push_back(absl::StrCat("x-amz-content-sha256: ", kHashOfNothing));
    if (!credentials_->session_token.empty()) {
      headers.push_back(absl::StrCat("x-amz-security-token: ", credentials_->session_token));
    }
  }
  for (const std::string& header : headers) list = curl_slist_append(list, header.c_str());
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(absl::ToInt64Milliseconds(timeouts_.connect)));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(absl::ToInt64Seconds(timeouts_.slow)));
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &ReceiveHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &receiver);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &ReceiveBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &receiver);

  const CURLcode result = curl_easy_perform(easy);
  long code = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
  answer.code = static_cast<int>(code);
  if (receiver.too_long) {
    answer.transport = absl::InvalidArgumentError(
        absl::StrCat("is longer than the maximum of ", max_body_bytes, " bytes"));
  } else if (result != CURLE_OK) {
    const std::string message = *error != '\0' ? error : curl_easy_strerror(result);
    answer.transport =
        IsTransient(result) ? absl::UnavailableError(message) : absl::InternalError(message);
  } else if (!receiver.headers_ended) {
    // libcurl treats a connection that ends here as a response without a body.
    answer.transport =
        absl::UnavailableError("the connection was closed in the header of the response");
  }
  return answer;
}

}  // namespace syncgrads
