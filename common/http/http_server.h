// A small HTTP server: pages that a program makes when they are requested, such as its metrics.

#ifndef SYNCGRADS_COMMON_HTTP_HTTP_SERVER_H_
#define SYNCGRADS_COMMON_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/tls/tls_options.h"

namespace syncgrads {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // Further headers, each a name and a value.
  std::vector<std::pair<std::string, std::string>> headers;
};

// The pages by their path, for example "/livez". Each is made for each request, on any thread, and
// several may be made at the same time.
using HttpPages = std::map<std::string, std::function<HttpReply()>>;

// Streams of server-sent events by their path. Each function returns the data of the next event, a
// line of text, or an error if the stream has to end. It is called on any thread, and for several
// streams at the same time.
using HttpEventPages = std::map<std::string, std::function<absl::StatusOr<std::string>()>>;

struct HttpEvents {
  HttpEventPages pages;
  // The time between two events of a stream.
  absl::Duration interval = absl::Seconds(1);
  // How often HttpSecurity::refuse decides about an open stream again.
  absl::Duration permission_interval = absl::Seconds(10);
};

// Who sends a request.
struct HttpCaller {
  // The address, without a port.
  std::string peer;
  // The DNS names, URIs and e-mail addresses in the certificate of the caller.
  std::vector<std::string> names;
  // From the header Authorization: the token of the scheme Bearer, or the password of Basic, which
  // browsers ask for. Empty if there is none.
  std::string token;
};

struct HttpSecurity {
  // Without a certificate, connections are plain text. With a client CA, callers may have a
  // certificate; one that is expired or of another CA ends the connection.
  TlsOptions tls;
  // Logs a line if files of `tls` have changed and cannot be used. Called on any thread. May be
  // null.
  std::function<void(const std::string& line)> warn;
  // Returns the answer to a request for `path` that is refused; nullopt if the request may be
  // served. Called on any thread. A stream of events that is open ends when its request would be
  // refused. Null: every request may be served.
  std::function<std::optional<HttpReply>(const HttpCaller& caller, const std::string& path)> refuse;
};

struct HttpTimes {
  // How long a request may take from the acceptance of its connection, with the TLS handshake.
  absl::Duration request = absl::Seconds(5);
  // How long the answer may take from then on. Not for streams of events.
  absl::Duration answer = absl::Seconds(30);
};

// Serves GET and HEAD requests for its pages. Other paths and methods are answered with 404, and an
// exception of a page with 500. A connection is closed after its answer.
//
// A thread of its own answers /livez and /readyz, so that probes succeed while readers of other
// pages are slow or many. Their answers must be short.
//
// Eight other requests are answered at the same time. Of these, at most four are streams of events,
// and two of one caller, which is the names in its certificate or its network (NetworkOf); a
// request for another one is answered with 503. A stream ends when its reader does not accept an
// event within five seconds, and with the server. Another answer ends when its reader accepts
// nothing for two seconds, and after HttpTimes::answer.
//
// A connection whose request is incomplete occupies no thread. It is closed after
// HttpTimes::request; a request of more than 32 KiB is refused. At most 64 requests are incomplete,
// and 16 of one network: a further connection replaces the one whose request has been incomplete
// for longest, of its network or of the network that has the most. At most 64 complete requests
// wait for one of the eight threads, and at most 64 for that of /livez and /readyz: of more, the
// newest connection of the network that has the most is closed.
//
// Thread-safe.
class HttpServer {
 public:
  // Listens on `address` and starts to serve. If its port is 0, the kernel picks a free one.
  //
  // Errors:
  //   Unavailable        the address cannot be listened on
  //   ResourceExhausted  there is no memory for TLS
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address, HttpPages pages,
                                                           HttpEvents events = {},
                                                           HttpSecurity security = {},
                                                           HttpTimes times = {});
  // Ends the streams of events, and waits for the requests that are being answered.
  ~HttpServer();

  // The address, with the port that is listened on.
  const HostPort& address() const { return address_; }

 private:
  class Connections;

  HttpServer(HostPort address, std::unique_ptr<Connections> connections);

  const HostPort address_;
  const std::unique_ptr<Connections> connections_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_HTTP_SERVER_H_
