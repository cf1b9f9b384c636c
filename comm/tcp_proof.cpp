#include "comm/tcp_proof.h"

#include <sys/random.h>

#include <cstring>

#include "kernels/runtime/request.h"

#ifdef RZ_HAVE_CRYPTO
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

namespace rz {

static_assert(sizeof(Challenge) == 40 && sizeof(Hello) == 96 && sizeof(Answer) == 32, "sent as they are: no padding");

Nonce random_nonce() {
    Nonce n;
    require(getrandom(n.data(), n.size(), 0) == ssize_t(n.size()), "getrandom gave no random bytes: %s",
            std::strerror(errno));
    return n;
}

#ifdef RZ_HAVE_CRYPTO

bool built_with_proofs() { return true; }

bool same(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

// `side` keeps a proof from being sent back as the other side's.
static Mac proof(const std::string& secret, char side, const Challenge& c, const Hello& h) {
    unsigned char text[1 + sizeof c + offsetof(Hello, proof)];
    text[0] = static_cast<unsigned char>(side);
    std::memcpy(text + 1, &c, sizeof c);
    std::memcpy(text + 1 + sizeof c, &h, offsetof(Hello, proof));
    Mac mac;
    unsigned length = 0;
    require(HMAC(EVP_sha256(), secret.data(), int(secret.size()), text, sizeof text, mac.data(), &length) &&
                length == mac.size(),
            "OpenSSL made no HMAC-SHA-256");
    return mac;
}

Mac proof_of_caller(const std::string& secret, const Challenge& c, const Hello& h) { return proof(secret, 'c', c, h); }
Mac proof_of_listener(const std::string& secret, const Challenge& c, const Hello& h) {
    return proof(secret, 'l', c, h);
}

#else

[[noreturn]] static void none() {
    refuse(
        "ranks without MPI prove to each other by OpenSSL's libcrypto that they belong to the job, and this program "
        "was built without it\n"
        "  install it (apt-get install libssl-dev), then make reconfigure and make; or use mpirun");
}
bool built_with_proofs() { return false; }
bool same(const Mac&, const Mac&) { none(); }
Mac proof_of_caller(const std::string&, const Challenge&, const Hello&) { none(); }
Mac proof_of_listener(const std::string&, const Challenge&, const Hello&) { none(); }

#endif

}  // namespace rz
