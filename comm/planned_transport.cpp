#include "comm/planned_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "comm/library.h"
#include "comm/watch.h"
#include "kernels/runtime/context.h"

namespace rz {

PlannedLink even_link(Ticks latency, int64_t bytes_per_second) {
    require(latency >= 0 && bytes_per_second > 0, "a link of %lld ticks and %lld bytes per second", (long long)latency,
            (long long)bytes_per_second);
    return [=](int, int, int64_t bytes, Ticks ready) {
        const __int128 ticks = (__int128(bytes) * kTicksPerSecond + bytes_per_second - 1) / bytes_per_second;
        return ready + latency + Ticks(ticks);
    };
}

class PlannedMail {
   public:
    struct Letter {
        int64_t bytes;
        Ticks arrival;
        std::vector<char> content;  // where ops are executed
    };

    PlannedMail(int size, double timeout_s) : timeout_s_(timeout_s), boxes_(size_t(size)) {}

    void put(int from, int to, Letter letter) {
        Box& box = boxes_[size_t(to)];
        {
            std::lock_guard lock(box.mutex);
            box.letters[from].push_back(std::move(letter));
        }
        box.changed.notify_all();
    }

    Letter take(int from, int to) {
        Box& box = boxes_[size_t(to)];
        std::unique_lock lock(box.mutex);
        std::deque<Letter>& letters = box.letters[from];
        const bool came = box.changed.wait_for(lock, std::chrono::duration<double>(timeout_s_),
                                               [&] { return !letters.empty() || box.closed; });
        require(!letters.empty() || !box.closed, "member %d waits for member %d, which failed", to, from);
        if (!came)
            throw DeadlineError(
                format("member %d waited %.1f s for a message that member %d did not send", to, timeout_s_, from));
        Letter letter = std::move(letters.front());
        letters.pop_front();
        return letter;
    }

    // Nothing more comes: whoever waits throws.
    void close() {
        for (Box& box : boxes_) {
            {
                std::lock_guard lock(box.mutex);
                box.closed = true;
            }
            box.changed.notify_all();
        }
    }

   private:
    struct Box {
        std::mutex mutex;
        std::condition_variable changed;
        bool closed = false;
        std::map<int, std::deque<Letter>> letters;  // by sender
    };

    double timeout_s_;
    std::vector<Box> boxes_;  // by receiver
};

std::shared_ptr<PlannedMail> make_planned_mail(int size, double timeout_s) {
    return std::make_shared<PlannedMail>(size, timeout_s);
}

PlannedPeers::PlannedPeers(std::vector<int> ranks, double timeout_s)
    : ranks_(std::move(ranks)), timeout_s_(timeout_s) {}

std::shared_ptr<PlannedMail> PlannedPeers::mail(const std::string& group, const std::vector<int>& members) {
    // Parts of the same tensors and sequences do the same at the same time: only a pipeline's ranks tell each other.
    if (group.rfind(name_of(Axis::pp), 0) != 0 && group != name_of(Axis::model)) return nullptr;
    for (const int member : members)
        if (std::find(ranks_.begin(), ranks_.end(), member) == ranks_.end()) return nullptr;
    std::string key = group;
    for (const int member : members) key += " " + std::to_string(member);
    std::lock_guard lock(mutex_);
    std::shared_ptr<PlannedMail>& mail = mails_[key];
    if (!mail) mail = make_planned_mail(int(members.size()), timeout_s_);
    if (!failed_.empty()) mail->close();
    return mail;
}

std::vector<std::vector<int64_t>> PlannedPeers::gather(int rank, const std::vector<int64_t>& own) {
    std::unique_lock lock(mutex_);
    const size_t turn = gathers_made_[rank]++;
    if (gathers_.size() <= turn) gathers_.resize(turn + 1);
    gathers_[turn].by_rank[rank] = own;
    changed_.notify_all();
    const bool all = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s_), [&] {
        return !failed_.empty() || gathers_[turn].by_rank.size() == std::set<int>(ranks_.begin(), ranks_.end()).size();
    });
    require(failed_.empty(), "%s", failed_.c_str());
    if (!all) throw DeadlineError(format("planned rank %d waited %.1f s for the others to gather", rank, timeout_s_));
    std::vector<std::vector<int64_t>> values;
    for (const int r : ranks_) values.push_back(gathers_[turn].by_rank[r]);
    return values;
}

void PlannedPeers::fail(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (failed_.empty()) failed_ = reason;
    for (const auto& [key, mail] : mails_) mail->close();
    changed_.notify_all();
}

namespace {

// A library's collectives: its memory, and the time of the ring's messages without its additions.
template <class Base>
class PlannedLibrary : public Base {
   public:
    template <class... More>
    PlannedLibrary(Transport& transport, const CollectiveOptions& options, More... more)
        : Base(transport, options, more...), ring_(make_ring(transport, options)) {}

   protected:
    void sum(Stream& stream, const void*, char* sums, int64_t n, DType wire) override {
        const std::vector<int64_t> even = even_offsets(n, this->size());
        move(stream, sums, even, wire);
        move(stream, sums, even, wire);
    }
    void sum_slices(Stream& stream, const char*, char* sums, Offsets offsets, DType wire) override {
        move(stream, sums, offsets, wire);
    }
    void gather_slices(Stream& stream, char* values, Offsets offsets, DType dtype) override {
        move(stream, values, offsets, dtype);
    }
    void spread(Stream& stream, void* values, int64_t bytes, int root) override {
        uncounted([&] { this->Collectives::do_broadcast(stream, values, bytes, root); });
    }

   private:
    // Every link passes all slices but one on. What is sent is counted by whoever calls the library.
    void move(Stream& stream, char* values, Offsets offsets, DType dtype) {
        uncounted([&] {
            this->hand_to(*ring_, stream, AllGather{.out = values, .in = values, .offsets = offsets, .dtype = dtype});
        });
    }
    template <class Body>
    void uncounted(const Body& body) {
        const int64_t before = this->transport_.bytes_sent();
        body();
        this->transport_.count_sent(before - this->transport_.bytes_sent());
    }

    std::unique_ptr<Collectives> ring_;
};

// Addresses only.
class PlannedShares : public SharedMemory {
   public:
    PlannedShares(int64_t bytes, Alloc how, int members) {
        const int64_t part = round_up(std::max<int64_t>(bytes, 1), 4096);
        stride_ = how == Alloc::shared ? 0 : part;
        bytes_ = bytes;
        all_ = how == Alloc::shared ? part : checked_mul(part, members, "shared memory");
        base_ = static_cast<char*>(detail::reserve_addresses(all_, /*usable=*/false));
        require(base_, "a planned device has no addresses left for %lld bytes", (long long)all_);
    }
    ~PlannedShares() override { detail::release_addresses(base_, all_); }

   private:
    int64_t all_;
};

class PlannedTransport : public Transport {
   public:
    PlannedTransport(std::string group, int rank, std::vector<int> world_ranks, Device device, PlannedLink link,
                     std::shared_ptr<PlannedMail> mail, bool over_mpi)
        : Transport(std::move(group), rank, std::move(world_ranks), device, nullptr),
          link_(std::move(link)),
          mail_(std::move(mail)),
          over_mpi_(over_mpi) {
        require(device.is_planned(), "the planned transport of group '%s' needs a planned device",
                this->group().c_str());
    }

    const char* name() const override { return "planned"; }
    // Alone, each hop costs what every other does: two short runs are made, and the rest is waited for.
    void make_hops(Stream& stream, int hops, int64_t bytes, const std::function<void(int)>& move) override {
        constexpr int kFew = 16;
        if (mail_ || hops <= 6 * kFew) return move(hops);
        const int64_t sent = bytes_sent();
        const auto time_of = [&](int some) {
            const Ticks before = stream.clock();
            move(some);
            return stream.clock() - before;
        };
        const Ticks few = time_of(kFew), more = time_of(2 * kFew);
        const Ticks all = more + (hops - 2 * kFew) * (more - few) / kFew;
        stream.wait_until(stream.clock() + std::max<Ticks>(0, all - few - more));
        count_sent(bytes - (bytes_sent() - sent));
    }
    void make_exchange(Stream& stream, const Shape& shape, const std::function<void()>& body) override {
        if (mail_ || executes(stream)) return body();
        stream.wait_until(stream.context().planned.host);
        if (const auto before = made_.find(shape); before != made_.end()) {
            stream.wait_until(stream.clock() + before->second.time);
            return count_sent(before->second.sent);
        }
        const Ticks start = stream.clock();
        const int64_t sent = bytes_sent();
        body();
        made_[shape] = {stream.clock() - start, bytes_sent() - sent};
    }
    // GPUs that are planned reach each other over NCCL.
    Mapping mapping() override {
        if (device().context->planned.executes) return Mapping::none;
        return waits_on_host() && !of_cpu() ? Mapping::pinned : Mapping::own;
    }
    bool waits_on_host() const override { return over_mpi_ || of_cpu(); }
    bool levels_apart() const override { return !waits_on_host(); }
    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override {
        return std::make_unique<PlannedShares>(bytes, how, size());
    }
    void reads(Stream& stream, int from, int64_t bytes) override {
        if (!of_cpu() && bytes > 0) stream.wait_until(arrives(from, rank(), bytes, stream.clock()));
    }
    std::unique_ptr<Collectives> library_collectives(const CollectiveOptions& options) override {
        require(!device().context->planned.executes, "library collectives on a planned device move nothing");
        if (of_cpu() || over_mpi_)
            return std::make_unique<PlannedLibrary<HostLibrary>>(*this, options, /*staged=*/!of_cpu());
        return std::make_unique<PlannedLibrary<DeviceLibrary>>(*this, options);
    }

   protected:
    struct State {
        std::vector<Message> receives;
        Ticks began = 0, sent = 0;  // sent: all that this rank sends has arrived
    };

    Transfer do_start(Stream& stream, const MessageGroup& group) override {
        auto state = std::make_shared<State>();
        stream.wait_until(stream.context().planned.host);
        state->began = state->sent = stream.clock();
        for (const Message& m : group.messages) {
            if (!m.is_send) {
                state->receives.push_back(m);
                continue;
            }
            const Ticks arrival = arrives(rank(), m.peer, m.bytes, state->began);
            state->sent = std::max(state->sent, arrival);
            if (!mail_) continue;
            PlannedMail::Letter letter{m.bytes, arrival, {}};
            const char* data = static_cast<const char*>(m.data);
            if (executes(stream)) letter.content.assign(data, data + m.bytes);
            mail_->put(rank(), m.peer, std::move(letter));
        }
        return {state};
    }

    void do_finish(Stream& stream, const Transfer& transfer) override {
        const State& state = *std::static_pointer_cast<State>(transfer.state);
        stream.wait_until(state.sent);
        for (const Message& m : state.receives) {
            if (!mail_) {
                stream.wait_until(arrives(m.peer, rank(), m.bytes, state.began));
                continue;
            }
            const PlannedMail::Letter letter = mail_->take(m.peer, rank());
            require(letter.bytes == m.bytes, "rank %d receives %lld bytes from rank %d, which sends %lld",
                    world_rank(rank()), (long long)m.bytes, world_rank(m.peer), (long long)letter.bytes);
            stream.wait_until(letter.arrival);
            if (!executes(stream)) continue;
            require(int64_t(letter.content.size()) == m.bytes, "rank %d executes ops and rank %d does not",
                    world_rank(rank()), world_rank(m.peer));
            std::memcpy(m.data, letter.content.data(), size_t(m.bytes));
        }
    }

   private:
    bool of_cpu() const { return device().context->one_memory; }
    static bool executes(const Stream& stream) { return stream.context().planned.executes; }

    Ticks arrives(int from, int to, int64_t bytes, Ticks ready) const {
        if (from == to || !link_) return ready;
        const Ticks arrival = link_(world_rank(from), world_rank(to), bytes, ready);
        require(arrival >= ready, "a message arrives at %lld that leaves at %lld", (long long)arrival,
                (long long)ready);
        return arrival;
    }

    struct Made {
        Ticks time;
        int64_t sent;
    };

    PlannedLink link_;
    std::shared_ptr<PlannedMail> mail_;
    bool over_mpi_;
    std::map<Shape, Made> made_;
};

}  // namespace

std::unique_ptr<Transport> make_planned_transport(std::string group, int rank, std::vector<int> world_ranks,
                                                  Device device, PlannedLink link, std::shared_ptr<PlannedMail> mail,
                                                  bool over_mpi) {
    return std::make_unique<PlannedTransport>(std::move(group), rank, std::move(world_ranks), device, std::move(link),
                                              std::move(mail), over_mpi);
}

}  // namespace rz
