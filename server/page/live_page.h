// The live page of ps-server --metrics: an HTML page that shows the server's status, its curves of
// the last ten minutes, and who is slow. A browser makes all of it from /status.json.

#ifndef SYNCGRADS_SERVER_PAGE_LIVE_PAGE_H_
#define SYNCGRADS_SERVER_PAGE_LIVE_PAGE_H_

#include "common/http/http_server.h"

namespace syncgrads::server {

// Adds the page as "/", and the files that it loads as "/" and their names. A
// Content-Security-Policy forbids the browser everything that is not from this server, also inline
// scripts and styles.
void AddLivePage(HttpPages& pages);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_PAGE_LIVE_PAGE_H_
