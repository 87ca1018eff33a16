// The flags about TLS that our programs share: --tls_ca, --tls_certificate, --tls_key and
// --tls_server_name.

#ifndef SYNCGRADS_COMMON_TLS_TLS_FLAGS_H_
#define SYNCGRADS_COMMON_TLS_TLS_FLAGS_H_

#include "common/tls/tls_options.h"

namespace syncgrads {

// Returns the options that the flags set, not checked.
TlsOptions TlsFromFlags();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TLS_TLS_FLAGS_H_
