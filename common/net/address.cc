#include "common/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status Refused(absl::string_view what, absl::string_view text, absl::string_view form,
                     absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is \"", text, "\", which is not ", form, ": ", why));
}

bool ParseIpv6(absl::string_view host, in6_addr& parsed) {
  // In a link-local address, the interface follows a %.
  const std::string address(host.substr(0, host.find('%')));
  return inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

bool IsIpv6(absl::string_view host) {
  in6_addr parsed;
  return ParseIpv6(host, parsed);
}

std::string Text(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

// An IP address. IPv4: the first four bytes. AF_UNSPEC: none.
struct Ip {
  int family = AF_UNSPEC;
  std::array<uint8_t, sizeof(in6_addr)> bytes = {};
  friend bool operator==(const Ip&, const Ip&) = default;
};

// Brackets around an IPv6 address are ignored.
Ip ParseIp(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::string text(host);
  for (const int family : {AF_INET, AF_INET6}) {
    Ip ip = {family};
    if (inet_pton(family, text.c_str(), ip.bytes.data()) == 1) return ip;
  }
  return {};
}

Ip IpOf(const sockaddr& address) {
  Ip ip = {address.sa_family};
  if (ip.family == AF_INET) {
    std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr,
                sizeof(in_addr));
  } else if (ip.family == AF_INET6) {
    std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr,
                sizeof(in6_addr));
  }
  return ip;
}

bool IsName(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

// Splits "host", "host:port", "[v6]" or "[v6]:port" into host and port. The port keeps its colon,
// and is empty if there is none.
std::pair<absl::string_view, absl::string_view> Split(absl::string_view text) {
  const size_t bracket = text.rfind(']');
  const size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  if (colon == text.npos || IsIpv6(text)) return {text, ""};
  return {text.substr(0, colon), text.substr(colon)};
}

absl::StatusOr<std::string> ParseHost(absl::string_view what, absl::string_view text,
                                      absl::string_view form, absl::string_view host) {
  absl::string_view inner = host;
  if (absl::ConsumePrefix(&inner, "[") && absl::ConsumeSuffix(&inner, "]")) {
    if (IsIpv6(inner)) return std::string(inner);
    return Refused(what, text, form,
                   absl::StrCat("\"", inner, "\" in brackets is not an IPv6 address"));
  }
  if (IsName(host) || IsIpv6(host)) return std::string(host);
  return Refused(
      what, text, form,
      host.empty() ? "it has no host" : absl::StrCat("\"", host, "\" is not a valid host"));
}

// Parses HOST:PORT with a port of at least `least`.
absl::StatusOr<HostPort> Parse(absl::string_view what, absl::string_view text,
                               absl::string_view form, uint32_t least = 1) {
  const auto [host, colon_port] = Split(text);
  const absl::string_view port = absl::StripPrefix(colon_port, ":");
  HostPort address;
  uint32_t number = 0;
  const bool digits =
      std::all_of(port.begin(), port.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  SYNCGRADS_ASSIGN_OR_RETURN(address.host, ParseHost(what, text, form, host));
  if (port.empty()) {
    return Refused(what, text, form,
                   IsIpv6(text) ? "it has no port; write an IPv6 address with a port in brackets"
                                : "it has no port");
  }
  if (!digits || !absl::SimpleAtoi(port, &number) || number < least || number > 65535) {
    return Refused(what, text, form,
                   absl::StrCat("port \"", port, "\" is not a number from ", least, " to 65535"));
  }
  address.port = static_cast<uint16_t>(number);
  return address;
}

}  // namespace

std::string ToString(const HostPort& address) {
  if (absl::StrContains(address.host, ':')) {
    return absl::StrCat("[", address.host, "]:", address.port);
  }
  return absl::StrCat(address.host, ":", address.port);
}

bool IsLoopback(absl::string_view host) {
  const Ip ip = ParseIp(host);
  if (ip.family == AF_INET) return ip.bytes[0] == 127;
  return host == "localhost" || ip == ParseIp("::1");
}

bool IsOwnAddress(absl::string_view host) {
  if (IsLoopback(host)) return true;
  const Ip ip = ParseIp(host);
  ifaddrs* all = nullptr;
  if (ip.family == AF_UNSPEC || getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    found = one->ifa_addr != nullptr && IpOf(*one->ifa_addr) == ip;
  }
  freeifaddrs(all);
  return found;
}

std::string NetworkOf(absl::string_view address) {
  constexpr absl::string_view kThisHost = "127.0.0.1";
  in6_addr network;
  if (!ParseIpv6(address, network)) return std::string(IsLoopback(address) ? kThisHost : address);
  if (IN6_IS_ADDR_LOOPBACK(&network)) return std::string(kThisHost);
  if (IN6_IS_ADDR_V4MAPPED(&network)) return NetworkOf(Text(AF_INET, network.s6_addr + 12));
  std::fill(network.s6_addr + 8, network.s6_addr + 16, uint8_t{0});
  return absl::StrCat(Text(AF_INET6, &network), "/64");
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view what, absl::string_view text) {
  return Parse(what, text, "HOST:PORT");
}

absl::StatusOr<HostPort> ParseHostAndPort(absl::string_view what, absl::string_view text,
                                          uint16_t port) {
  constexpr absl::string_view kForm = "HOST or HOST:PORT";
  const auto [host, colon_port] = Split(text);
  if (!colon_port.empty()) return Parse(what, text, kForm);
  SYNCGRADS_ASSIGN_OR_RETURN(std::string parsed, ParseHost(what, text, kForm, host));
  return HostPort{std::move(parsed), port};
}

absl::StatusOr<HostPort> ParseListenAddress(absl::string_view what, absl::string_view text) {
  return Parse(what, text, "HOST:PORT", /*least=*/0);
}

absl::Status CheckServerAddress(absl::string_view what, absl::string_view text) {
  for (absl::string_view scheme : {"unix:", "unix-abstract:"}) {
    absl::string_view path = text;
    if (absl::ConsumePrefix(&path, scheme) && !path.empty()) return absl::OkStatus();
  }
  return Parse(what, text, "HOST:PORT or unix:PATH").status();
}

}  // namespace syncgrads
