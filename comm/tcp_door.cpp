#include "comm/tcp_door.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/runtime/request.h"

namespace rz {

static SocketAddress to_socket(const TcpAddress& a) {
    SocketAddress s;
    if (a.family == AF_INET) {
        auto& v4 = reinterpret_cast<sockaddr_in&>(s.storage);
        v4.sin_family = AF_INET;
        v4.sin_port = htons(a.port);
        std::memcpy(&v4.sin_addr, a.host.data() + 12, 4);
        s.length = sizeof v4;
    } else {
        auto& v6 = reinterpret_cast<sockaddr_in6&>(s.storage);
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(a.port);
        std::memcpy(&v6.sin6_addr, a.host.data(), 16);
        s.length = sizeof v6;
    }
    return s;
}

// An address of IPv4 that came by a socket of IPv6 is that of IPv4.
TcpAddress from_socket(const SocketAddress& s) {
    TcpAddress a;
    if (s.storage.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(s.storage);
        a.family = AF_INET, a.port = ntohs(v4.sin_port);
        std::memcpy(a.host.data() + 12, &v4.sin_addr, 4);
    } else {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(s.storage);
        const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
        a.family = mapped ? AF_INET : AF_INET6, a.port = ntohs(v6.sin6_port);
        std::memcpy(a.host.data() + (mapped ? 12 : 0), v6.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
    return a;
}

std::string in_words(const TcpAddress& a) {
    char text[INET6_ADDRSTRLEN] = {};
    const bool v4 = a.family == AF_INET;
    inet_ntop(v4 ? AF_INET : AF_INET6, a.host.data() + (v4 ? 12 : 0), text, sizeof text);
    return format(v4 ? "%s:%d" : "[%s]:%d", text, int(a.port));
}

bool is_loopback(const TcpAddress& a) {
    static constexpr uint8_t kOne[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return a.family == AF_INET ? a.host[12] == 127 : std::memcmp(a.host.data(), kOne, 16) == 0;
}

std::vector<TcpAddress> resolve(const std::string& host, int port) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    std::vector<TcpAddress> all;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return all;
    for (const addrinfo* a = found; a; a = a->ai_next) {
        SocketAddress s;
        if (a->ai_addrlen > sizeof s.storage || (a->ai_family != AF_INET && a->ai_family != AF_INET6)) continue;
        std::memcpy(&s.storage, a->ai_addr, a->ai_addrlen);
        all.push_back(from_socket(s));
    }
    freeaddrinfo(found);
    return all;
}

Fd listen_at(bool loopback, int port) {
    int error = 0;
    for (const int family : {AF_INET6, AF_INET}) {
        if (loopback && family == AF_INET6) continue;
        Fd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int on = 1, off = 0;
        TcpAddress a{.family = uint16_t(family), .port = uint16_t(port)};
        if (loopback) a.host[12] = 127, a.host[15] = 1;
        SocketAddress s = to_socket(a);
        if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd && family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (fd && bind(fd.get(), s.raw(), s.length) == 0 && listen(fd.get(), SOMAXCONN) == 0) return fd;
        error = errno;
        if (error == EADDRINUSE) break;
    }
    refuse("port %d of this host: %s\n  nearest: set RINGZERO_PORT to a free one, the same for all ranks", port,
           std::strerror(error));
}

int port_of(int fd) {
    SocketAddress s;
    require(getsockname(fd, s.raw(), &s.length) == 0, "getsockname: %s", std::strerror(errno));
    return from_socket(s).port;
}

// ---- the side that calls --------------------------------------------------------------------------------------------

bool Dial::step() {
    if (state_ == State::rests) start();
    if (state_ == State::connects) connected();
    if (state_ == State::listens) hear_challenge();
    if (state_ == State::asks) hear_answer();
    if (state_ != State::rests && state_ != State::stands && TcpClock::now() - began_ > kProofTime)
        again("does not answer");
    return state_ == State::stands;
}

void Dial::start() {
    const auto now = TcpClock::now();
    if (now < next_) return;
    began_ = now, got_ = 0;
    fd_ = Fd(socket(to_.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_) return again(std::strerror(errno));
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    SocketAddress s = to_socket(to_);
    if (connect(fd_.get(), s.raw(), s.length) != 0 && errno != EINPROGRESS) return failed(errno);
    state_ = State::connects;
}

void Dial::connected() {
    pollfd p = {fd_.get(), POLLOUT, 0};
    if (poll(&p, 1, 0) <= 0) return;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) return failed(error);
    refused_since_ = {};
    state_ = State::listens;
}

void Dial::hear_challenge() {
    if (!hear(&challenge_, sizeof challenge_, "ends the connection before it says anything")) return;
    if (challenge_.magic != kTcpMagic) return again("is no rank of this version of the program");
    hello_.nonce = random_nonce();
    hello_.proof = proof_of_caller(secret_, challenge_, hello_);
    if (send(fd_.get(), &hello_, sizeof hello_, MSG_NOSIGNAL) != ssize_t(sizeof hello_))
        return again("ends the connection");
    got_ = 0, state_ = State::asks;
}

void Dial::hear_answer() {
    Answer want = {proof_of_listener(secret_, challenge_, hello_)};
    if (!hear(&answer_, sizeof answer_,
              "does not let this rank in: are RINGZERO_TOKEN and the number of ranks the same there?"))
        return;
    if (!same(want.proof, answer_.proof)) return again("does not know the job's secret");
    state_ = State::stands;
}

// True once all bytes are there.
bool Dial::hear(void* to, size_t bytes, const char* ended) {
    const ssize_t n = recv(fd_.get(), static_cast<char*>(to) + got_, bytes - got_, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return again(ended), false;
    if (n > 0) got_ += size_t(n);
    return got_ == bytes;
}

void Dial::failed(int error) {
    if (error == ECONNREFUSED && refused_since_ == TcpClock::time_point{}) refused_since_ = TcpClock::now();
    again(std::strerror(error));
}

void Dial::again(const char* why) {
    trouble_ = why;
    fd_ = Fd();
    state_ = State::rests;
    next_ = TcpClock::now() + pause_;
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(500));
}

// ---- the side that opens --------------------------------------------------------------------------------------------

Stranger::Stranger(Fd fd, TcpAddress from) : fd_(std::move(fd)), from_(from), challenge_{kTcpMagic, random_nonce()} {
    alive_ = send(fd_.get(), &challenge_, sizeof challenge_, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof challenge_);
}

bool Stranger::listen(const Launch& launch) {
    const ssize_t n = recv(fd_.get(), reinterpret_cast<char*>(&hello_) + got_, sizeof hello_ - got_, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) alive_ = false;
    if (n > 0) got_ += size_t(n);
    if (got_ < sizeof hello_) return false;
    alive_ = false;  // whatever comes of it
    if (hello_.magic != kTcpMagic || !same(hello_.proof, proof_of_caller(launch.secret, challenge_, hello_)))
        return false;
    if (int64_t(hello_.job_size) != launch.size || int64_t(hello_.from) >= launch.size ||
        int64_t(hello_.to) != launch.rank)
        return false;
    const Answer answer = {proof_of_listener(launch.secret, challenge_, hello_)};
    return send(fd_.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof answer);
}

}  // namespace rz
