// Ranks that find each other over TCP: messages between them, memory that they map, one that dies, and strangers at the
// door. The ranks are threads of this process, each with a net of its own.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <thread>

#include "comm/host_transport.h"
#include "comm/tcp_net.h"
#include "comm/tcp_proof.h"
#include "comm/watch.h"
#include "test/checks.h"

namespace rz {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kSecret[] = "a secret of this test";
constexpr auto kLittle = std::chrono::milliseconds(20);

std::vector<int> first(int n) {
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

// Until all messages are there; false after ten seconds.
bool complete(HostTransport& t, const std::vector<Message>& messages) {
    const auto batch = t.wire().post(messages);
    for (const auto began = Clock::now(); !batch->test(); batch->pause())
        if (Clock::now() - began > std::chrono::seconds(10)) return false;
    return true;
}

// The table goes from rank 0 to all; the program sends it in a tree.
void learn_table(TcpNet& net, HostTransport& control) {
    std::vector<TcpAddress>& table = net.table();
    const int64_t bytes = int64_t(table.size() * sizeof table[0]);
    for (int r = 1; r < control.size(); ++r) {
        const bool sends = control.rank() == 0;
        if (!sends && control.rank() != r) continue;
        ASSERT_TRUE(complete(control, {{table.data(), bytes, sends ? r : 0, sends}}));
    }
    net.table_is_there();
}

class TcpNetTest : public testing::Test {
   protected:
    void SetUp() override {
        if (!built_with_proofs()) GTEST_SKIP() << "built without libcrypto";
        listening_ = listen_on_loopback(&port_);
    }
    void TearDown() override {
        if (!given_ && listening_ >= 0) close(listening_);
    }
    Launch launch(int rank, int size) {
        Launch l{.how = Launch::How::tcp,
                 .rank = rank,
                 .size = size,
                 .by = "test",
                 .one_host = true,
                 .address = "127.0.0.1"};
        l.port = port_;
        l.listening = rank == 0 ? listening_ : -1;
        l.secret = kSecret;
        given_ = given_ || rank == 0;
        return l;
    }
    // One thread for each rank. `late` runs before the ranks above 0 come.
    void run(int ranks, const std::function<void(TcpNet&, HostTransport&)>& body,
             const std::function<void()>& late = {}) {
        std::vector<std::thread> threads;
        std::vector<std::string> errors(static_cast<size_t>(ranks));
        for (int r = 0; r < ranks; ++r) {
            if (r == 1 && late) late();
            threads.emplace_back([&, r] {
                try {
                    const auto net = TcpNet::join(launch(r, ranks), 20);
                    const auto control = net->transport(first(ranks), "control", 0, Device{}, nullptr);
                    learn_table(*net, *control);
                    body(*net, *control);
                    net->leave();
                } catch (const std::exception& error) {
                    errors[size_t(r)] = error.what();
                }
            });
        }
        for (std::thread& t : threads) t.join();
        for (int r = 0; r < ranks; ++r) EXPECT_EQ(errors[size_t(r)], "") << "rank " << r;
    }

    int port_ = 0, listening_ = -1;
    bool given_ = false;
};

// Every rank sends to every other, and to itself; sizes from a byte to more than the kernel's buffers hold, both ways.
void exchange_all(HostTransport& t) {
    for (const int64_t bytes : {int64_t(1), int64_t(4099), int64_t(9) << 20}) {
        std::vector<std::vector<char>> out, in;
        std::vector<Message> messages;
        for (int r = 0; r < t.size(); ++r) {
            out.emplace_back(size_t(bytes), char(10 * t.rank() + r));
            in.emplace_back(size_t(bytes));
        }
        for (int r = 0; r < t.size(); ++r) {
            messages.push_back({out[size_t(r)].data(), bytes, r, true});
            messages.push_back({in[size_t(r)].data(), bytes, r, false});
        }
        ASSERT_TRUE(complete(t, messages));
        for (int r = 0; r < t.size(); ++r)
            EXPECT_EQ(in[size_t(r)], std::vector<char>(size_t(bytes), char(10 * r + t.rank())));
    }
}

TEST_F(TcpNetTest, MessagesOfAnySizeInEveryDirection) {
    run(3, [](TcpNet&, HostTransport& control) { exchange_all(control); });
}

TEST_F(TcpNetTest, GroupsDoNotMixAndOrderIsKept) {
    run(4, [](TcpNet& net, HostTransport& control) {
        const int half = control.rank() / 2;
        const auto pair = net.transport({2 * half, 2 * half + 1}, "pair", 1, Device{}, nullptr);
        const auto all = net.transport(first(4), "all", 2, Device{}, nullptr);
        std::thread other([&] { exchange_all(*all); });
        const int peer = 1 - pair->rank();
        for (int i = 0; i < 200; ++i) {
            int a = 2 * i, b = 2 * i + 1, got_a = -1, got_b = -1;
            ASSERT_TRUE(complete(
                *pair, {{&a, 4, peer, true}, {&got_a, 4, peer, false}, {&b, 4, peer, true}, {&got_b, 4, peer, false}}));
            ASSERT_EQ(got_a, a);
            ASSERT_EQ(got_b, b);
        }
        other.join();
    });
}

TEST_F(TcpNetTest, SizesThatDisagreeAreNamed) {
    run(2, [](TcpNet&, HostTransport& control) {
        char bytes[8] = {}, end = 0;
        if (control.rank() == 0) {
            ASSERT_TRUE(complete(control, {{bytes, 8, 1, true}, {&end, 1, 1, false}}));
        } else {
            EXPECT_EQ(error_of([&] {
                          complete(control, {{bytes, 4, 0, false}});
                      }),
                      "rank 1 receives 4 bytes from rank 0, which sends 8");
            ASSERT_TRUE(complete(control, {{&end, 1, 0, true}}));
        }
    });
}

TEST_F(TcpNetTest, MemoryIsTheSameForAll) {
    run(3, [](TcpNet&, HostTransport& control) {
        for (const Alloc how : {Alloc::per_rank, Alloc::shared}) {
            const auto memory = control.share(5000, how);
            for (int i = 0; i < 5000; ++i) ASSERT_EQ(memory->part(control.rank())[i], 0);
            std::vector<char> there(3);
            const auto meet = [&] {
                std::vector<Message> messages;
                char here = 1;
                for (int r = 0; r < 3; ++r) {
                    messages.push_back({&here, 1, r, true});
                    messages.push_back({&there[size_t(r)], 1, r, false});
                }
                ASSERT_TRUE(complete(control, messages));
            };
            meet();
            if (how == Alloc::per_rank || control.rank() == 1)
                std::memset(memory->part(control.rank()), 'a' + control.rank(), 5000);
            meet();
            for (int r = 0; r < 3; ++r) EXPECT_EQ(memory->part(r)[4999], how == Alloc::shared ? 'b' : 'a' + r);
            meet();
        }
    });
}

TEST_F(TcpNetTest, ARankThatDiesIsNamedAfterAWhile) {
    run(2, [](TcpNet& net, HostTransport& control) {
        char byte = 0;
        if (control.rank() == 1) {
            ASSERT_TRUE(complete(control, {{&byte, 1, 0, true}}));
            return;
        }
        ASSERT_TRUE(complete(control, {{&byte, 1, 1, false}}));
        const auto began = Clock::now();
        const std::string said = error_of([&] {
            for (int i = 0; i < 1000; ++i) net.check_peers(), std::this_thread::sleep_for(kLittle);
        });
        EXPECT_TRUE(says(said, "rank 1 has gone"));
        EXPECT_GT(Clock::now() - began, std::chrono::seconds(2)) << "its launcher had no time to say why";
        EXPECT_TRUE(says(error_of([&] { complete(control, {{&byte, 1, 1, false}}); }), "rank 1 has gone"));
    });
}

TEST_F(TcpNetTest, RanksThatDoNotComeAreNamed) {
    const auto error = error_of<DeadlineError>([&] { TcpNet::join(launch(0, 3), 0.5); });
    EXPECT_TRUE(says(error, "2 of 3 ranks have not come"));
    EXPECT_TRUE(says(error, ": 1, 2"));
}

TEST_F(TcpNetTest, AnotherTokenIsSaid) {
    Launch other = launch(1, 2);
    other.secret = "some other secret";
    std::string said;
    std::thread stranger([&] { said = error_of<DeadlineError>([&] { TcpNet::join(other, 1); }); });
    EXPECT_THROW(TcpNet::join(launch(0, 2), 2), DeadlineError);
    stranger.join();
    EXPECT_TRUE(says(said, "does not let this rank in: are RINGZERO_TOKEN"));
}

// ---- strangers ------------------------------------------------------------------------------------------------------

class Caller {
   public:
    explicit Caller(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in a = {};
        a.sin_family = AF_INET, a.sin_port = htons(uint16_t(port)), a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
        const timeval second = {1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    }
    Caller(Caller&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
    ~Caller() {
        if (fd_ >= 0) close(fd_);
    }
    Challenge challenge() {
        heard_ = true;
        Challenge c = {};
        if (recv(fd_, &c, sizeof c, MSG_WAITALL) != ssize_t(sizeof c)) c = {};
        return c;
    }
    template <class T>
    void say(const T& what) const {
        say(&what, sizeof what);
    }
    void say(const void* what, size_t bytes) const {
        if (send(fd_, what, bytes, MSG_NOSIGNAL) < 0) return;  // the door was shut
    }
    bool is_let_in() {
        if (!heard_) challenge();
        Answer a;
        return recv(fd_, &a, sizeof a, MSG_WAITALL) == ssize_t(sizeof a);
    }
    void reset() const {
        const linger now = {1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    bool connected() const { return connected_; }

   private:
    int fd_;
    bool connected_ = false, heard_ = false;
};

Hello hello_of(
    const Challenge& c, const std::string& secret, const std::function<void(Hello&)>& change = [](Hello&) {}) {
    Hello h = {.magic = kTcpMagic,
               .group = 0,
               .job_size = 3,
               .from = 1,
               .to = 0,
               .port = 1,
               .registers = 1,
               .nonce = random_nonce(),
               .proof = {}};
    change(h);
    h.proof = proof_of_caller(secret, c, h);
    return h;
}

// Those that are not let in; their connections stay open.
struct Attacks {
    int port;
    std::vector<Caller> stay = {};

    void attack(const char* name, const std::function<void(Caller&)>& what) {
        Caller s(port);
        ASSERT_TRUE(s.connected()) << name;
        what(s);
        EXPECT_FALSE(s.is_let_in()) << name;
        stay.push_back(std::move(s));
    }
    void with(const char* name, const std::string& secret, const std::function<void(Hello&)>& change) {
        attack(name, [&](Caller& s) { s.say(hello_of(s.challenge(), secret, change)); });
    }
    // After the proof was made.
    void changed(const char* name, const std::function<void(Hello&, const Challenge&)>& change) {
        attack(name, [&](Caller& s) {
            const Challenge c = s.challenge();
            Hello h = hello_of(c, kSecret);
            change(h, c);
            s.say(h);
        });
    }

    void hellos() {
        with("another token", "another token", [](Hello&) {});
        with("an empty token", "", [](Hello&) {});
        with("another size of the job", kSecret, [](Hello& h) { h.job_size = 4; });
        with("a rank that is none", kSecret, [](Hello& h) { h.from = 3; });
        with("a rank far out", kSecret, [](Hello& h) { h.from = 0xffffffff; });
        with("for another rank", kSecret, [](Hello& h) { h.to = 2; });
        with("another version", kSecret, [](Hello& h) { h.magic ^= 1; });
        changed("no proof", [](Hello& h, const Challenge&) { h.proof = {}; });
        changed("one bit of the proof", [](Hello& h, const Challenge&) { h.proof[31] ^= 1; });
        changed("another rank after the proof", [](Hello& h, const Challenge&) { h.from = 2; });
        changed("the listener's proof as the caller's",
                [](Hello& h, const Challenge& c) { h.proof = proof_of_listener(kSecret, c, h); });
        Caller seen(port);  // a true one, which is let in and recorded
        const Hello recorded = hello_of(seen.challenge(), kSecret, [](Hello& h) { h.registers = 0, h.group = 99; });
        seen.say(recorded);
        EXPECT_TRUE(seen.is_let_in()) << "else this shows nothing";
        attack("what was recorded, again", [&](Caller& s) { s.say(recorded); });
    }
    void nonsense() {
        attack("the challenge sent back", [](Caller& s) {
            const Challenge c = s.challenge();
            for (int i = 0; i < 3; ++i) s.say(c);
        });
        attack("half a handshake", [](Caller& s) {
            const Hello h = hello_of(s.challenge(), kSecret);
            s.say(&h, sizeof h / 2);
        });
        attack("nothing", [](Caller&) {});
        attack("another protocol", [](Caller& s) {
            const std::string get = "GET / HTTP/1.1\r\nHost: localhost\r\n" + std::string(200, 'x') + "\r\n\r\n";
            s.say(get.data(), get.size());
        });
        attack("garbage", [](Caller& s) {
            std::string much(1 << 20, ' ');
            for (size_t i = 0; i < much.size(); ++i) much[i] = char(i * 2654435761u >> 13);
            s.say(much.data(), much.size());
        });
        for (int i = 0; i < 100; ++i) {
            Caller s(port);
            if (i % 2) s.reset();  // closed at once, and reset
        }
    }
};

// They come before the ranks do, and a byte now and then comes all the time; the ranks find each other all the same.
TEST_F(TcpNetTest, StrangersAreNotLetIn) {
    Attacks attacks{port_};
    std::atomic<bool> stop = false;
    std::thread slow;
    run(
        3, [](TcpNet&, HostTransport& control) { exchange_all(control); },
        [&] {
            attacks.hellos();
            attacks.nonsense();
            slow = std::thread([&] {
                std::vector<Caller> some;
                for (int i = 0; i < 20; ++i) some.emplace_back(port_);
                while (!stop) {
                    for (const Caller& s : some) s.say("x", 1);
                    std::this_thread::sleep_for(kLittle);
                }
            });
        });
    stop = true;
    slow.join();
}

// Ten thousand connections that say nothing, held open as far as files allow, while ranks come.
TEST_F(TcpNetTest, TenThousandConnectionsKeepNobodyOut) {
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    const size_t hold = std::min<size_t>(2000, size_t(files.rlim_cur) / 4);
    std::atomic<bool> stop = false;
    std::atomic<int> came = 0;
    std::thread flood;
    run(
        3, [](TcpNet&, HostTransport& control) { exchange_all(control); },
        [&] {
            flood = std::thread([&] {
                std::deque<Caller> held;
                for (int i = 0; i < 10000; ++i) {
                    held.emplace_back(port_);
                    came += held.back().connected();
                    if (held.size() > hold) held.pop_front();
                }
            });
            while (came < 1000) std::this_thread::sleep_for(kLittle);
        });
    flood.join();
    EXPECT_GE(came, 1000);
}

// A listener in rank 0's place that does not know the secret learns nothing and starts nothing.
TEST_F(TcpNetTest, AFalseRankZeroIsNotBelieved) {
    const Launch honest = launch(1, 2);
    given_ = false;
    std::atomic<bool> stop = false;
    std::thread impostor([&] {
        for (int i = 0; !stop; ++i) {
            const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0) {
                std::this_thread::sleep_for(kLittle);
                continue;
            }
            const Challenge c = {i % 4 == 3 ? 0 : kTcpMagic, random_nonce()};
            Hello h = {};
            Answer a = {};
            if (send(fd, &c, sizeof c, MSG_NOSIGNAL) > 0 && recv(fd, &h, sizeof h, MSG_WAITALL) == ssize_t(sizeof h)) {
                if (i % 4 == 0) a.proof = h.proof;  // the caller's own
                if (i % 4 == 1) a.proof = proof_of_listener("a guess", c, h);
                if (send(fd, &a, i % 4 == 2 ? 5 : sizeof a, MSG_NOSIGNAL) < 0) stop = stop.load();
            }
            close(fd);
        }
    });
    const auto error = error_of<DeadlineError>([&] { TcpNet::join(honest, 2); });
    EXPECT_TRUE(says(error, "has not reached rank 0"));
    stop = true;
    impostor.join();
}

}  // namespace
}  // namespace rz
