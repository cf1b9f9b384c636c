#include "comm/tcp_net.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "comm/deadline.h"
#include "comm/placement.h"
#include "comm/watch.h"
#include "kernels/runtime/request.h"

namespace rz {

namespace {

using Clock = TcpClock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kGoneGrace = seconds(3);      // a launcher knows better why a rank has gone, and ends the job
constexpr size_t kStrangers = 256;           // connections without a proof; one more ends the oldest
constexpr int kYields = 20;                  // of a wait, before it sleeps in poll()
constexpr int kNap = 2;                      // ms
constexpr int64_t kTurn = int64_t(4) << 20;  // bytes of one connection before the next one's turn

// ---- messages -------------------------------------------------------------------------------------------------------

// One message on its way. First its length, by which both sides notice that they disagree.
struct Moving {
    char* data;
    int64_t bytes, at = 0;
    uint64_t header = 0;
    bool is_send, done = false, dropped = false;
    int peer;  // of the group
};

struct Line {  // a connection in one direction, and what waits for it
    Fd fd;
    std::unique_ptr<Dial> dial;  // of a sender's, until it stands
    std::deque<std::shared_ptr<Moving>> queue;
    Clock::time_point gone = {};
    std::string error;  // of sizes that disagree

    bool is_gone() const { return gone != Clock::time_point{}; }
    bool gone_for(Clock::duration d) const { return is_gone() && Clock::now() - gone > d; }
    bool waits() const { return !queue.empty() && !is_gone() && error.empty() && !queue.front()->dropped; }
};

class TcpWire;

}  // namespace

// Three threads or more: those that wait for messages, under `mutex`; and the one that listens, under `arrivals_mutex`.
struct TcpNet::Body {
    Launch launch;
    Fd listener, wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}, stop_event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::atomic<bool> stop = false, leaving = false, given_up = false;
    bool rejoins() const { return launch.starter >= 0; }
    Clock::duration grace() const { return rejoins() ? milliseconds(50) : Clock::duration(kGoneGrace); }
    std::thread thread;

    std::mutex arrivals_mutex;
    std::condition_variable arrived;
    std::map<std::pair<uint64_t, int>, Fd> arrivals;  // by group and sender, until the group takes it
    std::vector<TcpAddress> table;
    TcpAddress root;  // where this rank has reached rank 0
    std::vector<bool> known;
    int missing = 0;
    std::string trouble;  // two processes that say they are one rank
    TcpAddress outside;   // how ranks of other hosts reach this one

    std::mutex mutex;
    std::condition_variable changed;
    bool asks = false;
    std::vector<TcpWire*> wires;

    ~Body() {
        stop = true;
        tell(stop_event);
        if (thread.joinable()) thread.join();
    }
    static void tell(const Fd& event) {
        const uint64_t one = 1;
        if (write(event.get(), &one, sizeof one) < 0) return;  // it has been told
    }
    void accept_all();
    bool progress();
    void wait_a_little(bool sleeps, const std::vector<std::shared_ptr<Moving>>& own);
};

// ---- the side that listens ------------------------------------------------------------------------------------------

void TcpNet::Body::accept_all() {
    std::deque<Stranger> strangers;
    const auto registers = [this](const Stranger& s) {  // rank 0 learns where a rank listens
        const size_t r = s.hello().from;
        TcpAddress there = s.from();
        there.port = s.hello().port;
        if (known[r] && table[r] != there && missing > 0)
            trouble = format("two processes say that they are rank %zu: at %s and at %s", r, in_words(table[r]).c_str(),
                             in_words(there).c_str());
        if (missing == 0) return;
        missing -= !known[r];
        known[r] = true;
        table[r] = there;
        SocketAddress here;
        if (!is_loopback(there) && getsockname(s.fd(), here.raw(), &here.length) == 0) outside = from_socket(here);
    };
    while (!stop) {
        std::vector<pollfd> fds = {{stop_event.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
        for (const Stranger& s : strangers) fds.push_back({s.fd(), POLLIN, 0});
        if (poll(fds.data(), nfds_t(fds.size()), strangers.empty() ? -1 : 200) < 0 && errno != EINTR) return;
        for (size_t i = 0; i < strangers.size(); ++i) {
            Stranger& s = strangers[i];
            if (fds[i + 2].revents == 0 || !s.listen(launch)) continue;
            const std::lock_guard lock(arrivals_mutex);
            if (s.hello().registers && launch.rank == 0) {
                registers(s);
            } else if (!s.hello().registers) {
                arrivals.insert_or_assign({s.hello().group, int(s.hello().from)}, s.take());
                tell(wake);
            }
            arrived.notify_all();
        }
        std::erase_if(strangers, [](const Stranger& s) { return !s.alive(); });
        for (int i = 0; i < int(kStrangers); ++i) {
            SocketAddress from;
            Fd fd(accept4(listener.get(), from.raw(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!fd && (errno == EMFILE || errno == ENFILE) && !strangers.empty()) {
                strangers.pop_front();
                continue;
            }
            if (!fd) break;
            if (strangers.size() == kStrangers) strangers.pop_front();
            strangers.emplace_back(std::move(fd), from_socket(from));
        }
        if (fds[1].revents && strangers.empty()) std::this_thread::sleep_for(milliseconds(1));  // no file to be had
    }
}

// ---- a group's messages ---------------------------------------------------------------------------------------------

namespace {

class TcpWire : public Wire {
   public:
    TcpWire(std::shared_ptr<TcpNet> net, TcpNet::Body& body, std::vector<int> members, int place, uint64_t number,
            bool is_control)
        : net_(std::move(net)),
          body_(body),
          members_(std::move(members)),
          place_(place),
          number_(number),
          is_control_(is_control) {
        const std::lock_guard lock(body_.mutex);
        body_.wires.push_back(this);
    }
    ~TcpWire() override {
        const std::lock_guard lock(body_.mutex);
        std::erase(body_.wires, this);
    }

    class TcpBatch : public Batch {
       public:
        explicit TcpBatch(TcpWire& wire) : wire_(wire) {}
        ~TcpBatch() override {
            const std::lock_guard lock(wire_.body_.mutex);
            for (const auto& m : moving) m->dropped = !m->done;  // its memory is not in use from here on
        }
        bool test() override {
            const std::lock_guard lock(wire_.body_.mutex);
            wire_.progress();
            for (const auto& m : moving)
                if (!m->done) return wire_.check(*m), false;
            return true;
        }
        void pause() override { wire_.body_.wait_a_little(++pauses_ > kYields, moving); }
        std::vector<int> pending() override {
            const std::lock_guard lock(wire_.body_.mutex);
            std::vector<int> list;
            for (size_t i = 0; i < moving.size(); ++i)
                if (!moving[i]->done) list.push_back(int(i));
            return list;
        }
        std::vector<std::shared_ptr<Moving>> moving;

       private:
        TcpWire& wire_;
        int pauses_ = 0;
    };

    std::unique_ptr<Batch> post(const std::vector<Message>& messages) override {
        auto batch = std::make_unique<TcpBatch>(*this);
        const std::lock_guard lock(body_.mutex);
        for (const Message& m : messages) {
            batch->moving.push_back(std::make_shared<Moving>(Moving{.data = static_cast<char*>(m.data),
                                                                    .bytes = m.bytes,
                                                                    .header = m.is_send ? uint64_t(m.bytes) : 0,
                                                                    .is_send = m.is_send,
                                                                    .peer = m.peer}));
            (m.is_send ? out_ : in_)[m.peer].queue.push_back(batch->moving.back());
        }
        progress();
        return batch;
    }

    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override;
    void check_peers() override { net_->check_peers(); }

    // With the mutex held, like all below.
    bool progress() {
        bool some = false;
        for (auto& [peer, line] : out_)
            if (line.waits() && (line.fd || dial(peer, line))) some |= move(line, /*sends=*/true);
        for (auto& [peer, line] : in_) {
            if (!line.waits()) continue;
            if (!line.fd) take(peer, line);
            if (line.fd) some |= move(line, /*sends=*/false);
        }
        return some;
    }
    void add_waits(std::vector<pollfd>& fds) {
        for (auto& [peer, line] : out_)
            if (line.waits()) fds.push_back(line.dial ? line.dial->wanted() : pollfd{line.fd.get(), POLLOUT, 0});
        for (auto& [peer, line] : in_)
            if (line.waits() && line.fd) fds.push_back({line.fd.get(), POLLIN, 0});
    }
    // Whether what a rank has sent to this one has ended; lines on which a message is awaited show it by themselves.
    void look_for_the_dead() {
        for (auto& [peer, line] : out_)  // others that gave up hear of it before all that this rank has is destroyed
            if (is_control_ && line.fd && body_.given_up) shutdown(line.fd.get(), SHUT_WR);
        for (auto& [peer, line] : in_) {
            char byte;
            if (!is_control_ || !line.fd || line.is_gone() || !line.queue.empty()) continue;
            if (recv(line.fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) line.gone = Clock::now();
        }
        for (auto& [peer, line] : in_)
            if (is_control_ && line.gone_for(body_.grace())) say_gone(peer);
    }

   private:
    [[noreturn]] void say_gone(int peer) {
        body_.given_up = body_.rejoins();
        fail("rank %d has gone: its connection ended, and nobody has said why", members_[size_t(peer)]);
    }
    void check(const Moving& m) {
        Line& line = (m.is_send ? out_ : in_)[m.peer];
        if (!line.error.empty()) throw Error(line.error);
        if (line.gone_for(body_.grace())) say_gone(m.peer);
        require(!body_.given_up, "another rank has gone");
    }
    // True once the connection stands.
    bool dial(int peer, Line& line) {
        if (!line.dial) {
            Hello hello = {.magic = kTcpMagic,
                           .group = number_,
                           .job_size = uint32_t(body_.launch.size),
                           .from = uint32_t(members_[size_t(place_)]),
                           .to = uint32_t(members_[size_t(peer)]),
                           .port = 0,
                           .registers = 0,
                           .nonce = {},
                           .proof = {}};
            line.dial = std::make_unique<Dial>(body_.table[hello.to], hello, body_.launch.secret);
        }
        if (!line.dial->step()) {
            if (line.dial->refused_for(seconds(1)) && !line.is_gone()) line.gone = Clock::now();
            return false;
        }
        line.fd = line.dial->take();
        line.dial.reset();
        return true;
    }
    void take(int peer, Line& line) {
        const std::lock_guard lock(body_.arrivals_mutex);
        const auto it = body_.arrivals.find({number_, members_[size_t(peer)]});
        if (it == body_.arrivals.end()) return;
        line.fd = std::move(it->second);
        body_.arrivals.erase(it);
    }
    // What goes without waiting. True if a message is complete.
    bool move(Line& line, bool sends) {
        bool some = false;
        for (int64_t turn = 0; line.waits() && turn < kTurn;) {
            Moving& m = *line.queue.front();
            constexpr int64_t kHeader = sizeof m.header;
            iovec parts[2];
            int n = 0;
            if (m.at < kHeader) parts[n++] = {reinterpret_cast<char*>(&m.header) + m.at, size_t(kHeader - m.at)};
            // What is received goes to its place only when the length is known to be right.
            if (m.at >= kHeader || sends) {
                const int64_t from = std::max<int64_t>(0, m.at - kHeader);
                parts[n++] = {m.data + from, size_t(m.bytes - from)};
            }
            msghdr message = {};
            message.msg_iov = parts, message.msg_iovlen = size_t(n);
            const ssize_t moved = sends ? sendmsg(line.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                                        : recvmsg(line.fd.get(), &message, MSG_DONTWAIT);
            if (moved < 0 && errno == EINTR) continue;
            if (moved < 0 && errno == EAGAIN) break;
            if (moved <= 0) {
                line.gone = Clock::now();
                break;
            }
            m.at += moved, turn += moved;
            if (!sends && m.at == kHeader && m.header != uint64_t(m.bytes))
                line.error =
                    format("rank %d receives %lld bytes from rank %d, which sends %llu", members_[size_t(place_)],
                           (long long)m.bytes, members_[size_t(m.peer)], (unsigned long long)m.header);
            if (m.at < kHeader + m.bytes) continue;
            m.done = some = true;
            line.queue.pop_front();
        }
        return some;
    }
    void complete(const std::vector<Message>& messages) {
        const auto batch = post(messages);
        WaitClock clock;
        while (!batch->test()) {
            batch->pause();
            require(clock.look() < 60, "a rank did not come to the memory that all map within 60 s");
        }
    }

    std::shared_ptr<TcpNet> net_;
    TcpNet::Body& body_;
    std::vector<int> members_;
    int place_;
    uint64_t number_;
    bool is_control_;
    std::map<int, Line> out_, in_;  // by peer
};

// ---- memory that ranks of a host map --------------------------------------------------------------------------------

struct MappedMemory : SharedMemory {
    MappedMemory(int fd, int64_t all, int64_t bytes, int64_t stride) : all_(size_t(all)) {
        void* memory = mmap(nullptr, all_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        require(memory != MAP_FAILED, "cannot map %lld bytes that ranks share: %s", (long long)all,
                std::strerror(errno));
        base_ = static_cast<char*>(memory);
        bytes_ = bytes;
        stride_ = stride;
    }
    ~MappedMemory() override { munmap(base_, all_); }
    size_t all_;
};

// What the first member says of the memory that it made: a file without a name.
struct Offered {
    char host[64];
    int32_t pid, fd;
    uint64_t device, node;
};

std::unique_ptr<SharedMemory> TcpWire::share(int64_t bytes, Alloc how) {
    const int64_t part = round_up(std::max<int64_t>(bytes, 1), 4096);
    const int64_t all = how == Alloc::shared ? part : checked_mul(part, int64_t(members_.size()), "shared memory");
    const std::string host = host_id();
    Offered offered = {};
    Fd fd;
    struct stat st = {};
    if (place_ == 0) {
        fd = Fd(memfd_create("ringzero", MFD_CLOEXEC));
        const int error = !fd ? errno : posix_fallocate(fd.get(), 0, off_t(all));
        require(error == 0, "%s that the ranks of this host share: %s\n  nearest: --collectives direct",
                human_bytes(all).c_str(), std::strerror(error));
        require(fstat(fd.get(), &st) == 0, "fstat: %s", std::strerror(errno));
        std::snprintf(offered.host, sizeof offered.host, "%s", host.c_str());
        offered.pid = int32_t(getpid()), offered.fd = fd.get();
        offered.device = st.st_dev, offered.node = st.st_ino;
    }
    std::vector<Message> messages;
    if (place_ > 0) messages.push_back({&offered, sizeof offered, 0, false});
    for (int r = 1; place_ == 0 && r < int(members_.size()); ++r)
        messages.push_back({&offered, sizeof offered, r, true});
    complete(messages);
    if (place_ > 0) {
        offered.host[sizeof offered.host - 1] = '\0';
        if (host == offered.host)
            fd = Fd(open(format("/proc/%d/fd/%d", offered.pid, offered.fd).c_str(), O_RDWR | O_CLOEXEC));
        require_request(fd && fstat(fd.get(), &st) == 0 && st.st_dev == offered.device && st.st_ino == offered.node,
                        "--collectives symmetric: ranks %d and %d are on different hosts or in different containers, "
                        "and can't map each other's memory\n"
                        "  nearest: --collectives direct, or --shard-size of the ranks of a host",
                        members_[0], members_[size_t(place_)]);
    }
    auto memory = std::make_unique<MappedMemory>(fd.get(), all, bytes, how == Alloc::shared ? 0 : part);
    std::vector<char> there(members_.size());
    messages.clear();
    if (place_ > 0) messages.push_back({&there[0], 1, 0, true});
    for (int r = 1; place_ == 0 && r < int(members_.size()); ++r) messages.push_back({&there[size_t(r)], 1, r, false});
    complete(messages);  // the first member's file stays open until all have it
    return memory;
}

}  // namespace

bool TcpNet::Body::progress() {
    bool some = false;
    for (TcpWire* wire : wires) some |= wire->progress();
    return some;
}

// One of the threads that wait makes progress for all groups; the others sleep until it has some.
void TcpNet::Body::wait_a_little(bool sleeps, const std::vector<std::shared_ptr<Moving>>& own) {
    std::unique_lock lock(mutex);
    if (asks) {
        changed.wait_for(lock, milliseconds(kNap), [&] {
            return !asks || std::all_of(own.begin(), own.end(), [](const auto& m) { return m->done; });
        });
        return;
    }
    asks = true;
    if (!sleeps) {
        lock.unlock();
        sched_yield();
    } else {
        std::vector<pollfd> fds = {{wake.get(), POLLIN, 0}};
        for (TcpWire* wire : wires) wire->add_waits(fds);
        lock.unlock();
        if (poll(fds.data(), nfds_t(fds.size()), kNap) > 0 && fds[0].revents) {
            uint64_t count;
            if (read(wake.get(), &count, sizeof count) < 0) sched_yield();
        }
    }
    lock.lock();
    asks = false;
    progress();
    lock.unlock();
    changed.notify_all();
}

// ---- the job --------------------------------------------------------------------------------------------------------

namespace {

// Every connection is a file, and a thousand ranks on one host have many.
void allow_many_files() {
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// Tells rank 0 where this rank listens, and gives the address by which it was reached.
TcpAddress register_with_root(const Launch& launch, int port, double deadline_s) {
    const Hello hello = {.magic = kTcpMagic,
                         .group = 0,
                         .job_size = uint32_t(launch.size),
                         .from = uint32_t(launch.rank),
                         .to = 0,
                         .port = uint16_t(port),
                         .registers = 1,
                         .nonce = {},
                         .proof = {}};
    std::string trouble = "its address is not known";
    std::vector<Dial> dials;
    Clock::time_point resolved = {};
    WaitClock clock;
    while (clock.look() < deadline_s) {
        if (dials.empty() && Clock::now() - resolved > seconds(1)) {
            resolved = Clock::now();
            for (const TcpAddress& a : resolve(launch.address, launch.port))
                dials.emplace_back(a, hello, launch.secret);
        }
        std::vector<pollfd> fds;
        for (Dial& d : dials) {
            if (d.step()) return d.to();
            trouble = in_words(d.to()) + " " + d.trouble();
            fds.push_back(d.wanted());
        }
        poll(fds.data(), nfds_t(fds.size()), 10);
    }
    throw DeadlineError(format("rank %d of %d has not reached rank 0 at %s, port %d, within %.0f s: %s", launch.rank,
                               launch.size, launch.address.c_str(), launch.port, deadline_s, trouble.c_str()));
}

}  // namespace

std::shared_ptr<TcpNet> TcpNet::join(const Launch& launch, double deadline_s) {
    proof_of_caller("", {}, {});  // refuses where there are no proofs
    allow_many_files();
    std::shared_ptr<TcpNet> net(new TcpNet);
    net->body_ = std::make_unique<Body>();
    Body& b = *net->body_;
    b.launch = launch;
    b.table.resize(size_t(launch.size));
    b.known.resize(size_t(launch.size));
    b.missing = launch.rank == 0 ? launch.size - 1 : 0;
    if (launch.rank == 0 && launch.listening >= 0) {
        fcntl(launch.listening, F_SETFD, FD_CLOEXEC);
        fcntl(launch.listening, F_SETFL, O_NONBLOCK);
        b.listener = Fd(b.rejoins() ? fcntl(launch.listening, F_DUPFD_CLOEXEC, 0) : launch.listening);
    } else {
        b.listener = listen_at(launch.one_host, launch.rank == 0 ? launch.port : 0);
    }
    const int port = port_of(b.listener.get());
    b.thread = std::thread([&b] { b.accept_all(); });
    if (launch.rank > 0) {
        b.root = register_with_root(launch, port, deadline_s);
        return net;
    }
    std::unique_lock lock(b.arrivals_mutex);
    WaitClock clock;
    while (b.missing > 0 && b.trouble.empty() && clock.look() < deadline_s) b.arrived.wait_for(lock, milliseconds(200));
    if (!b.trouble.empty()) throw Error(b.trouble);
    if (b.missing > 0) {
        std::string who;
        int named = 0;
        for (int r = 1; r < launch.size; ++r)
            if (!b.known[size_t(r)] && ++named <= 16) who += format("%s%d", who.empty() ? "" : ", ", r);
        throw DeadlineError(format("%d of %d ranks have not come to port %d of rank 0 within %.0f s: %s%s", b.missing,
                                   launch.size, port, deadline_s, who.c_str(), named > 16 ? ", ..." : ""));
    }
    // Ranks of this host may have come by its loopback.
    b.table[0] = {
        .family = AF_INET, .port = uint16_t(port), .host = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 127, 0, 0, 1}};
    for (TcpAddress& a : b.table)
        if (is_loopback(a) && b.outside.family) a.family = b.outside.family, a.host = b.outside.host;
    return net;
}

TcpNet::~TcpNet() = default;

std::vector<TcpAddress>& TcpNet::table() { return body_->table; }
void TcpNet::table_is_there() {
    if (body_->launch.rank > 0) body_->table[0] = body_->root;
}

std::unique_ptr<HostTransport> TcpNet::transport(const std::vector<int>& members, const std::string& group,
                                                 uint64_t number, Device device, std::shared_ptr<Watch> watch) {
    const auto own = std::find(members.begin(), members.end(), body_->launch.rank);
    require(own != members.end(), "group %s does not contain rank %d", group.c_str(), body_->launch.rank);
    const int place = int(own - members.begin());
    auto wire = std::make_unique<TcpWire>(shared_from_this(), *body_, members, place, number, group == "control");
    return std::make_unique<HostTransport>("tcp", std::move(wire), group, place, members, device, std::move(watch));
}

void TcpNet::check_peers() {
    if (body_->leaving) return;
    const std::lock_guard lock(body_->mutex);
    for (TcpWire* wire : body_->wires) wire->look_for_the_dead();
    require(!body_->given_up, "another rank has gone");
}

void TcpNet::give_up() { body_->given_up = true; }
bool TcpNet::given_up() const { return body_->given_up; }

void TcpNet::leave() { body_->leaving = true; }

int listen_on_loopback(int* port) {
    Fd fd = listen_at(/*loopback=*/true, 0);
    *port = port_of(fd.get());
    return dup(fd.get());
}

}  // namespace rz
