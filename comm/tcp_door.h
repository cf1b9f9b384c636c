#pragma once
// The two sides of a connection until it stands: who calls (Dial), and who opens (Stranger). Neither ever blocks, and
// neither takes anything from the other but what tcp_proof.h says.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch.h"
#include "comm/tcp_proof.h"

namespace rz {

using TcpClock = std::chrono::steady_clock;
constexpr auto kProofTime = std::chrono::seconds(10);  // of a connection that has not proved anything

// An address of IPv4 (the last four bytes) or IPv6.
struct TcpAddress {
    uint16_t family = 0, port = 0;
    std::array<uint8_t, 16> host = {};
    bool operator==(const TcpAddress&) const = default;
};

class Fd {
   public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() {
        if (fd_ >= 0) close(fd_);
    }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }

   private:
    int fd_;
};

struct SocketAddress {
    sockaddr_storage storage = {};
    socklen_t length = sizeof storage;
    sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
};

TcpAddress from_socket(const SocketAddress& s);
std::string in_words(const TcpAddress& a);
bool is_loopback(const TcpAddress& a);
// Empty where the name is not known, which it may be later: pods get theirs when they are ready.
std::vector<TcpAddress> resolve(const std::string& host, int port);
// Port 0: any. Not on loopback: every address of the host, of IPv6 and IPv4 where there are both.
Fd listen_at(bool loopback, int port);
int port_of(int fd);

// A connection that is being made, by steps that never block; begins anew where it fails.
class Dial {
   public:
    Dial(TcpAddress to, Hello hello, const std::string& secret) : to_(to), hello_(hello), secret_(secret) {}

    // Makes progress; true once the connection stands.
    bool step();
    Fd take() { return std::move(fd_); }
    pollfd wanted() const { return {fd_.get(), short(state_ == State::connects ? POLLOUT : POLLIN), 0}; }
    const std::string& trouble() const { return trouble_; }
    const TcpAddress& to() const { return to_; }
    // Nobody listens there, and for how long that has been so.
    bool refused_for(TcpClock::duration d) const {
        return refused_since_ != TcpClock::time_point{} && TcpClock::now() - refused_since_ > d;
    }

   private:
    enum class State { rests, connects, listens, asks, stands };

    void start();
    void connected();
    void hear_challenge();
    void hear_answer();
    bool hear(void* to, size_t bytes, const char* ended);
    void failed(int error);
    void again(const char* why);

    TcpAddress to_;
    Hello hello_;
    std::string secret_, trouble_ = "has not been reached";
    State state_ = State::rests;
    Fd fd_;
    Challenge challenge_ = {};
    Answer answer_ = {};
    size_t got_ = 0;
    TcpClock::time_point next_ = {}, began_ = {}, refused_since_ = {};
    std::chrono::milliseconds pause_{10};
};

// A connection that came, until it has proved what it is.
class Stranger {
   public:
    Stranger(Fd fd, TcpAddress from);
    int fd() const { return fd_.get(); }
    bool alive() const { return alive_ && TcpClock::now() - began_ < kProofTime; }
    // Reads; true once it has said all, and proved it.
    bool listen(const Launch& launch);
    const Hello& hello() const { return hello_; }
    const TcpAddress& from() const { return from_; }
    Fd take() { return std::move(fd_); }

   private:
    Fd fd_;
    TcpAddress from_;
    Challenge challenge_;
    Hello hello_ = {};
    size_t got_ = 0;
    bool alive_ = true;
    TcpClock::time_point began_ = TcpClock::now();
};

}  // namespace rz
