#include "comm/loopback.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>

#include "comm/host_transport.h"
#include "comm/watch.h"
#include "kernels/runtime/context.h"

namespace rz {

namespace {

// A sender's memory, offered to the receiver.
struct Offer {
    const void* data;
    int64_t bytes;
    bool taken = false;
};

// Why the job ends, once a rank has failed.
struct Failure {
    std::mutex mutex;
    std::string text;
    std::atomic<int> exit_code = 0;
    std::atomic<bool> there = false;
    void check() {
        if (!there) return;
        std::lock_guard lock(mutex);
        throw Error(text);
    }
};

}  // namespace

struct LoopbackHub::Group {
    Group(int size, std::shared_ptr<Failure> failure) : size(size), failure(std::move(failure)) {}
    int size;
    std::shared_ptr<Failure> failure;
    std::mutex mutex;
    std::map<size_t, std::deque<std::shared_ptr<Offer>>> queues;  // from * size + to, of those that send
    std::vector<std::weak_ptr<char>> shared;                      // by number: the k-th of each member is the same
    std::vector<std::pair<std::shared_ptr<char>, int>> kept;      // until the last member has it
    std::deque<std::shared_ptr<Offer>>& queue(int from, int to) {
        return queues[size_t(from) * size_t(size) + size_t(to)];
    }
};

struct LoopbackHub::Shared {
    std::mutex mutex;
    std::shared_ptr<Failure> failure = std::make_shared<Failure>();
    std::map<std::string, std::shared_ptr<Group>> groups;
    std::vector<std::shared_ptr<Watch>> watches;
    std::deque<RankContext> contexts;
    DeviceKind kind = DeviceKind::cpu;
    // planned only
    PlannedLink link;
    double timeout_s = 0;
    std::map<std::string, std::shared_ptr<PlannedMail>> mail;
};

namespace {

template <class Group>
class LoopbackWire : public Wire {
   public:
    LoopbackWire(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

    class LoopbackBatch : public Batch {
       public:
        LoopbackBatch(std::shared_ptr<Group> group, int rank, std::vector<Message> messages)
            : group_(std::move(group)),
              rank_(rank),
              messages_(std::move(messages)),
              offers_(messages_.size()),
              done_(messages_.size()) {
            std::lock_guard lock(group_->mutex);
            for (size_t i = 0; i < messages_.size(); ++i) {
                if (!messages_[i].is_send) continue;
                offers_[i] = std::make_shared<Offer>(Offer{messages_[i].data, messages_[i].bytes});
                group_->queue(rank_, messages_[i].peer).push_back(offers_[i]);
            }
        }

        bool test() override {
            std::lock_guard lock(group_->mutex);  // copies under the lock: simple, and an ordering both sides see
            group_->failure->check();  // before a copy: a sender that has thrown here may have freed its memory
            bool all = true;
            std::vector<bool> blocked(size_t(group_->size));  // a peer's later receive must not overtake an earlier one
            for (size_t i = 0; i < messages_.size(); ++i) {
                if (done_[i]) continue;
                const Message& m = messages_[i];
                if (m.is_send) {
                    done_[i] = offers_[i]->taken;
                } else if (auto& queue = group_->queue(m.peer, rank_); !queue.empty() && !blocked[size_t(m.peer)]) {
                    Offer& offer = *queue.front();
                    require(offer.bytes == m.bytes, "rank %d receives %lld bytes from rank %d, which sends %lld", rank_,
                            (long long)m.bytes, m.peer, (long long)offer.bytes);
                    std::memcpy(m.data, offer.data, size_t(m.bytes));
                    offer.taken = true;
                    queue.pop_front();
                    done_[i] = true;
                } else {
                    blocked[size_t(m.peer)] = true;
                }
                all = all && done_[i];
            }
            return all;
        }

        std::vector<int> pending() override {
            std::vector<int> list;
            for (size_t i = 0; i < done_.size(); ++i)
                if (!done_[i]) list.push_back(int(i));
            return list;
        }

       private:
        std::shared_ptr<Group> group_;
        int rank_;
        std::vector<Message> messages_;
        std::vector<std::shared_ptr<Offer>> offers_;
        std::vector<bool> done_;
    };

    std::unique_ptr<Batch> post(const std::vector<Message>& messages) override {
        return std::make_unique<LoopbackBatch>(group_, rank_, messages);
    }
    // The first member that asks makes it.
    std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how) override {
        std::lock_guard lock(group_->mutex);
        const size_t number = size_t(shared_++);
        if (number == group_->shared.size()) group_->shared.emplace_back();
        const int64_t part = round_up(std::max<int64_t>(bytes, 1), 4096);
        const int64_t all = how == Alloc::shared ? part : checked_mul(part, group_->size, "shared memory");
        std::shared_ptr<char> memory = group_->shared[number].lock();
        if (!memory) {
            memory = {static_cast<char*>(std::aligned_alloc(4096, size_t(all))), [](char* p) { std::free(p); }};
            if (!memory) throw std::bad_alloc();
            std::memset(memory.get(), 0, size_t(all));
            group_->shared[number] = memory;
            group_->kept.push_back({memory, group_->size});
        }
        auto& kept =
            *std::find_if(group_->kept.begin(), group_->kept.end(), [&](auto& k) { return k.first == memory; });
        if (--kept.second == 0) std::erase_if(group_->kept, [&](auto& k) { return k.first == memory; });
        return std::make_unique<LoopbackMemory>(std::move(memory), bytes, how == Alloc::shared ? 0 : part);
    }
    void check_peers() override { group_->failure->check(); }

   private:
    struct LoopbackMemory : SharedMemory {
        LoopbackMemory(std::shared_ptr<char> memory, int64_t bytes, int64_t stride) : memory_(std::move(memory)) {
            base_ = memory_.get();
            bytes_ = bytes;
            stride_ = stride;
        }
        std::shared_ptr<char> memory_;
    };

    std::shared_ptr<Group> group_;
    int rank_;
    int64_t shared_ = 0;
};

}  // namespace

LoopbackHub::LoopbackHub(int ranks, double timeout_s) : ranks_(ranks), shared_(new Shared) {
    require(ranks > 0, "a loopback of %d ranks", ranks);
    for (int r = 0; r < ranks; ++r) {
        Watch::Options options;
        options.rank = r;
        options.size = ranks;
        options.timeout_s = timeout_s;
        shared_->watches.push_back(std::make_shared<Watch>(options));
        shared_->contexts.emplace_back();
    }
}

LoopbackHub::LoopbackHub(int ranks, DeviceKind kind, double timeout_s) : LoopbackHub(ranks, timeout_s) {
    require(kind != DeviceKind::planned, "a planned loopback needs a link");
    shared_->kind = kind;
}

LoopbackHub::LoopbackHub(int ranks, PlannedLink link, double timeout_s) : LoopbackHub(ranks, timeout_s) {
    shared_->kind = DeviceKind::planned;
    shared_->link = std::move(link);
    shared_->timeout_s = timeout_s;
}

LoopbackHub::~LoopbackHub() = default;

Device LoopbackHub::device(int rank) const {
    return {shared_->kind, shared_->kind == DeviceKind::cuda ? rank : 0, &shared_->contexts[size_t(rank)]};
}

std::shared_ptr<Watch> LoopbackHub::watch(int rank) { return shared_->watches[size_t(rank)]; }

std::shared_ptr<LoopbackHub::Group> LoopbackHub::group(const std::string& name, int size) {
    std::lock_guard lock(shared_->mutex);
    std::shared_ptr<Group>& group = shared_->groups[name];
    if (!group) group = std::make_shared<Group>(size, shared_->failure);
    require(group->size == size, "loopback group '%s' has %d members, not %d", name.c_str(), group->size, size);
    return group;
}

std::unique_ptr<Transport> LoopbackHub::transport(int rank, const std::string& name) {
    std::vector<int> all;
    for (int r = 0; r < ranks_; ++r) all.push_back(r);
    return subgroup(rank, all, name);
}

std::unique_ptr<HostTransport> LoopbackHub::control(int rank) {
    require(shared_->kind != DeviceKind::planned,
            "a Process of a rank on a planned device: there is no memory to send");
    std::vector<int> all(static_cast<size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    auto wire = std::make_unique<LoopbackWire<Group>>(group("control of the processes", ranks_), rank);
    const Device host{DeviceKind::cpu, 0, &shared_->contexts[size_t(rank)]};
    return std::make_unique<HostTransport>("loopback", std::move(wire), "control", rank, std::move(all), host,
                                           watch(rank));
}

int LoopbackHub::exit_code() const { return shared_->failure->exit_code; }

bool LoopbackHub::fail(int rank, const std::string& reason, int exit_code) {
    std::lock_guard lock(shared_->failure->mutex);
    if (!shared_->failure->text.empty()) return false;
    shared_->failure->text = format("rank %d failed: ", rank) + reason;
    shared_->failure->exit_code = exit_code;
    shared_->failure->there = true;
    return true;
}

std::unique_ptr<Transport> LoopbackHub::subgroup(int rank, const std::vector<int>& members, const std::string& name,
                                                 const std::string& key) {
    int place = -1;
    for (size_t i = 0; i < members.size(); ++i)
        if (members[i] == rank) place = int(i);
    require(place >= 0, "loopback group '%s' does not contain rank %d", name.c_str(), rank);
    if (shared_->kind == DeviceKind::planned) {
        std::lock_guard lock(shared_->mutex);
        std::shared_ptr<PlannedMail>& mail = shared_->mail[key];
        if (!mail) mail = make_planned_mail(int(members.size()), shared_->timeout_s);
        return make_planned_transport(name, place, members, device(rank), shared_->link, mail);
    }
    // Staged messages wait in host functions, and CUDA may run those of all GPUs of a process on one thread.
    require(shared_->kind != DeviceKind::cuda, "group %s of threads on GPUs: they send over NCCL", name.c_str());
    auto wire = std::make_unique<LoopbackWire<Group>>(group(key, int(members.size())), place);
    return std::make_unique<HostTransport>("loopback", std::move(wire), name, place, members, device(rank),
                                           watch(rank));
}

void LoopbackHub::run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_; ++r)
        threads.emplace_back([&, r] {
            try {
                body(r);
            } catch (...) {
                errors[size_t(r)] = std::current_exception();
            }
        });
    for (auto& thread : threads) thread.join();
    for (auto& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace rz
