#include "server/page/live_page.h"

#include <string>
#include <string_view>

#include "server/page/page_files.h"

namespace syncgrads::server {
namespace {

constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string ContentTypeOf(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

HttpReply ReplyWith(const PageFile& file) {
  HttpReply reply;
  reply.content_type = ContentTypeOf(file.name);
  reply.headers = {{"Content-Security-Policy", kContentSecurityPolicy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"}};
  reply.body = std::string(file.contents);
  return reply;
}

}  // namespace

void AddLivePage(HttpPages& pages) {
  for (const PageFile& file : PageFiles()) {
    std::string path = "/";
    if (file.name != "index.html") path.append(file.name);
    pages[path] = [&file] { return ReplyWith(file); };
  }
}

}  // namespace syncgrads::server
