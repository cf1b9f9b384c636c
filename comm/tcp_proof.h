#pragma once
// What two ends of a new connection say first. Each proves that it knows the job's secret, by a MAC over fresh random
// numbers of both: who listens on the way learns nothing that lets him in later, and what was recorded is of no use.
//
//   the side that listens     Challenge
//   the side that calls       Hello, whose proof covers the challenge
//   the side that listens     Answer
//
// All three have a fixed length, so nothing that a stranger sends says how much is read or allocated. What follows is
// not encrypted, as MPI's and NCCL's messages are not. HMAC-SHA-256 is OpenSSL's; a program that is built without it
// refuses to start over TCP, since nobody could tell its ranks from strangers.

#include <array>
#include <cstdint>
#include <string>

namespace rz {

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

struct Challenge {
    uint64_t magic;
    Nonce nonce;
};

struct Hello {
    uint64_t magic, group;  // group: which of the job's groups the connection serves
    uint32_t job_size, from, to;
    uint16_t port;       // where the caller listens
    uint16_t registers;  // 1: to say just that, to rank 0
    Nonce nonce;
    Mac proof;
};

struct Answer {
    Mac proof;
};

constexpr uint64_t kTcpMagic = 0x31706372676e6972ull;  // "ringrcp1", and the byte order

bool built_with_proofs();
// Throws where there are none.
Nonce random_nonce();
Mac proof_of_caller(const std::string& secret, const Challenge& c, const Hello& h);
Mac proof_of_listener(const std::string& secret, const Challenge& c, const Hello& h);
bool same(const Mac& a, const Mac& b);  // in a time that does not depend on where they differ

}  // namespace rz
