#include "comm/watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>

#include "comm/deadline.h"
#include "comm/host.h"

namespace rz {

static constexpr uint64_t kMagic = 0x72696e677a65726full;  // "ringzero"

static double now_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

static void set_name(char* to, size_t size, const char* from) {
    std::strncpy(to, from, size - 1);
    to[size - 1] = '\0';
}

std::string describe(const OpRecord& r) {
    static const char* const kStates[] = {"unused", "queued", "running", "done"};
    std::string text = format("%s #%llu (step %lld, %s, group %s): %s", r.op, (unsigned long long)r.seq,
                              (long long)r.step, human_bytes(r.bytes).c_str(), r.group, kStates[int(r.state)]);
    if (r.state == OpState::running) {
        text += format(", hop %d", r.hop);
        if (r.to >= 0) text += format(", to rank %d", r.to);
        if (r.from >= 0) text += format(", from rank %d", r.from);
    }
    return text;
}

static void append(const std::string& path, const std::string& text) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    if (write(fd, text.data(), text.size()) < 0) std::perror(path.c_str());
    close(fd);
}

static bool read_status(const std::string& path, StatusPage* page) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool whole = read(fd, page, sizeof *page) == ssize_t(sizeof *page);
    close(fd);
    page->host[sizeof page->host - 1] = '\0';  // whatever stands in the file
    for (OpRecord& r : page->ops) r.op[sizeof r.op - 1] = r.group[sizeof r.group - 1] = '\0';
    for (Channel& c : page->channels) c.group[sizeof c.group - 1] = '\0';
    page->channels_used = std::clamp(page->channels_used, 0, kChannels);
    return whole && page->magic == kMagic;
}

static std::string page_in(const std::string& directory, int rank) {
    return directory + "/rank" + std::to_string(rank) + ".status";
}

// Outlives the Watch if its thread hangs in a file system, so it has nothing of it.
struct Watch::Courier {
    std::string own, shared;  // folders
    int rank, size;
    std::atomic<bool> stop = false;
    std::mutex mutex;
    std::map<int, StatusPage> brought;  // of ranks that can't be seen from here
    std::string outgoing;               // for the shared failure.txt

    static void run(const std::shared_ptr<Courier>& c) {
        bool failed = false;
        while (!c->stop) {
            const std::string here = c->own + "/failure.txt", there = c->shared + "/failure.txt";
            if (!failed && access(there.c_str(), F_OK) == 0) append(here, "");  // the ranks of this host see that
            if (!failed && access(here.c_str(), F_OK) == 0) failed = true, c->hand_over();
            if (failed) c->collect();
            std::string text;
            {
                const std::lock_guard lock(c->mutex);
                text.swap(c->outgoing);
            }
            if (!text.empty()) append(there, text);
            std::this_thread::sleep_for(std::chrono::milliseconds(failed ? 100 : 500));
        }
    }
    // The pages of this host, those of ranks too that are stopped or dead.
    void hand_over() {
        append(shared + "/failure.txt", "");
        for (int r = 0; r < size; ++r) {
            StatusPage page;
            if (!read_status(page_in(own, r), &page)) continue;
            page.heartbeat -= now_s();  // clocks of other hosts differ: below zero it says how long ago
            const std::string path = page_in(shared, r), part = path + "." + std::to_string(rank);
            unlink(part.c_str());
            append(part, std::string(reinterpret_cast<const char*>(&page), sizeof page));
            if (rename(part.c_str(), path.c_str()) != 0) std::perror(path.c_str());
        }
    }
    void collect() {
        for (int r = 0; r < size; ++r) {
            StatusPage page;
            if (!read_status(page_in(shared, r), &page)) continue;
            const std::lock_guard lock(mutex);
            brought[r] = page;
        }
    }
};

void Watch::share(const std::string& directory) {
    if (!mapped_) return;
    require(!courier_, "records are handed over in %s already", courier_->shared.c_str());
    courier_ = std::make_shared<Courier>();
    courier_->own = options_.directory, courier_->shared = directory;
    courier_->rank = options_.rank, courier_->size = options_.size;
    grace_s_ = 3 * options_.grace_s;  // two couriers' rounds and a network file system
    std::thread([c = courier_] { Courier::run(c); }).detach();
}

Watch::Watch(Options options) : options_(std::move(options)), grace_s_(options_.grace_s) {
    if (!options_.directory.empty()) {
        const std::string path = page_path(options_.rank);
        const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        // Reserved: a page of a mapping that finds no room on a full disk would end the program by SIGBUS.
        const int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(StatusPage));
        if (fd >= 0 && error != 0) close(fd);
        require(error == 0,
                "can't make the status page %s: %s\n  free some space there, or set TMPDIR to a folder that has some",
                path.c_str(), std::strerror(error));
        void* memory = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        require(memory != MAP_FAILED, "cannot map the status page %s: %s", path.c_str(), std::strerror(errno));
        page_ = new (memory) StatusPage;
        mapped_ = true;
    } else {
        page_ = new StatusPage;
    }
    page_->rank = options_.rank;
    page_->size = options_.size;
    page_->pid = int(getpid());
    std::snprintf(page_->host, sizeof page_->host, "%s", host_name().c_str());
    page_->heartbeat = now_s();
    page_->magic = kMagic;
    if (!mapped_) return;
    thread_ = std::thread([this] { loop(); });
    guard_ = std::thread([this] { guard(); });
}

Watch::~Watch() {
    if (courier_) courier_->stop = true;
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    if (thread_.joinable()) thread_.join();
    if (guard_.joinable()) guard_.join();
    if (mapped_)
        munmap(page_, sizeof(StatusPage));
    else
        delete page_;
}

double Watch::timeout_s() const {
    return disk_work_ > 0 ? std::max(options_.timeout_s, options_.disk_timeout_s) : options_.timeout_s;
}

std::string Watch::page_path(int rank) const { return page_in(options_.directory, rank); }

void Watch::set_step(int64_t step) {
    std::lock_guard lock(mutex_);
    page_->step = step;
}

int Watch::channel(const char* group, int first) {
    Channel wanted;
    set_name(wanted.group, sizeof wanted.group, group);
    for (int c = 0; c < page_->channels_used; ++c)
        if (page_->channels[c].first == first && std::strcmp(page_->channels[c].group, wanted.group) == 0) return c;
    if (page_->channels_used == kChannels) return -1;
    wanted.first = first;
    page_->channels[page_->channels_used] = wanted;
    return page_->channels_used++;
}

void Watch::join(const char* group, int first) {
    std::lock_guard lock(mutex_);
    channel(group, first);
}

uint64_t Watch::queue(const char* op, const char* group, int first, int64_t bytes) {
    std::lock_guard lock(mutex_);
    const uint64_t seq = ++page_->last_seq;
    OpRecord& r = page_->ops[seq % kKeptOps];
    r = OpRecord{};
    r.channel = channel(group, first);
    if (r.channel >= 0) r.number = ++page_->channels[r.channel].issued;
    r.step = page_->step;
    r.bytes = bytes;
    r.when = now_s();
    r.state = OpState::queued;
    set_name(r.op, sizeof r.op, op);
    set_name(r.group, sizeof r.group, group);
    r.seq = seq;
    return seq;
}

void Watch::running(uint64_t seq, int to, int from) {
    std::lock_guard lock(mutex_);
    OpRecord& r = page_->ops[seq % kKeptOps];
    if (r.seq != seq) return;  // many later ones are queued already
    r.state = OpState::running;
    r.hop += 1;
    r.to = to;
    r.from = from;
    r.when = now_s();
}

OpRecord Watch::record(uint64_t seq) const {
    std::lock_guard lock(mutex_);
    const OpRecord& r = page_->ops[seq % kKeptOps];
    return r.seq == seq ? r : OpRecord{};
}

void Watch::done(uint64_t seq) {
    std::lock_guard lock(mutex_);
    page_->last_done = std::max(page_->last_done, seq);
    OpRecord& r = page_->ops[seq % kKeptOps];
    if (r.seq != seq) return;
    r.state = OpState::done;
    r.when = now_s();
}

bool Watch::read_page(int rank, StatusPage* page) const {
    if (rank == options_.rank) {
        std::lock_guard lock(mutex_);
        *page = *page_;
        return true;
    }
    if (!mapped_) return false;
    if (read_status(page_path(rank), page)) return true;
    if (!courier_) return false;
    const std::lock_guard lock(courier_->mutex);
    const auto it = courier_->brought.find(rank);
    if (it != courier_->brought.end()) *page = it->second;
    return it != courier_->brought.end();
}

std::string Watch::own_report(const std::string& waiting_for) const {
    StatusPage page;
    read_page(options_.rank, &page);
    std::string text = format("rank %d of %d (%s, pid %d), step %lld", page.rank, page.size, page.host, page.pid,
                              (long long)page.step);
    text += waiting_for.empty() ? ": ends because another rank gave up" : ": " + waiting_for;
    text += "\n  last operations:\n";
    const uint64_t last = page.last_seq, first = last > kKeptOps ? last - kKeptOps + 1 : 1;
    // Long queues are common: show those from the last finished one, at most five.
    uint64_t from = std::max(first, page.last_done > 2 ? page.last_done - 2 : 1);
    for (uint64_t s = from; s <= last && s < from + 5; ++s)
        text +=
            "    " + describe(page.ops[s % kKeptOps]) + format(", %.1f s ago\n", now_s() - page.ops[s % kKeptOps].when);
    if (last == 0) text += "    none yet\n";
    return text;
}

namespace {

using GroupId = std::pair<std::string, int>;  // name and first member

struct Issued {
    uint64_t least = UINT64_MAX, most = 0;
};

// How many operations the members of each group have issued.
std::map<GroupId, Issued> count_issued(const std::map<int, StatusPage>& pages) {
    std::map<GroupId, Issued> groups;
    for (const auto& [rank, page] : pages)
        for (int c = 0; c < page.channels_used; ++c) {
            Issued& issued = groups[{page.channels[c].group, page.channels[c].first}];
            issued.least = std::min(issued.least, page.channels[c].issued);
            issued.most = std::max(issued.most, page.channels[c].issued);
        }
    return groups;
}

// Whether others wait for this rank, in which group, and whether it waits for none itself.
std::string verdict(const StatusPage& page, const std::map<GroupId, Issued>& groups) {
    const Channel* behind = nullptr;
    bool ahead = false;
    for (int c = 0; c < page.channels_used; ++c) {
        const Issued& issued = groups.at({page.channels[c].group, page.channels[c].first});
        if (!behind && page.channels[c].issued < issued.most) behind = &page.channels[c];
        ahead = ahead || page.channels[c].issued > issued.least;
    }
    if (!behind) return "";
    return format(ahead ? ", behind in group %s, and waits itself" : "  <- BEHIND in group %s: the others wait for it",
                  behind->group);
}

// The same number must be the same operation for all members of a group. "" or the first that is not.
std::string mismatch(const std::map<int, StatusPage>& pages) {
    std::map<std::pair<GroupId, uint64_t>, std::pair<int, const OpRecord*>> known;
    for (const auto& [rank, page] : pages)
        for (const OpRecord& op : page.ops) {
            if (op.seq == 0 || op.channel < 0 || op.channel >= page.channels_used) continue;
            const Channel& channel = page.channels[op.channel];
            const auto [it, is_new] = known.insert({{{channel.group, channel.first}, op.number}, {rank, &op}});
            const OpRecord& other = *it->second.second;
            if (is_new || (std::strcmp(op.op, other.op) == 0 && op.bytes == other.bytes)) continue;
            if (op.state == OpState::done && other.state == OpState::done) continue;
            return format("  MISMATCH at #%llu of group %s: rank %d issued %s of %lld B, rank %d %s of %lld B\n",
                          (unsigned long long)op.number, channel.group, it->second.first, other.op,
                          (long long)other.bytes, rank, op.op, (long long)op.bytes);
        }
    return "";
}

}  // namespace

std::string Watch::job_report() const {
    std::map<int, StatusPage> pages;
    for (int r = 0; r < options_.size; ++r)
        if (StatusPage page; read_page(r, &page)) pages[r] = page;
    const std::map<GroupId, Issued> groups = count_issued(pages);
    std::string text = "all ranks, by their last sequence numbers:\n";
    for (int r = 0; r < options_.size; ++r) {
        if (!pages.count(r)) {
            text += format("  rank %d: cannot be seen from here (another host, or it never started)\n", r);
            continue;
        }
        const StatusPage& p = pages[r];
        const double silent = p.heartbeat < 0 ? -p.heartbeat : now_s() - p.heartbeat;
        text += format("  rank %d (%s, pid %d): step %lld, finished #%llu, issued #%llu", r, p.host, p.pid,
                       (long long)p.step, (unsigned long long)p.last_done, (unsigned long long)p.last_seq);
        if (silent > 2) text += format(", silent for %.1f s: the process is stopped or dead", silent);
        text += verdict(p, groups) + "\n";
    }
    return text + mismatch(pages);
}

void Watch::append_report(const std::string& text) const {
    append(failure_path(), text);
    if (courier_) {
        const std::lock_guard lock(courier_->mutex);
        courier_->outgoing += text;
    }
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
}

void Watch::expired(const std::string& waiting_for) {
    const std::string mine = own_report(waiting_for);
    if (options_.directory.empty()) {
        if (options_.on_failure) options_.on_failure(mine);
        throw DeadlineError(mine);
    }
    const int fd = open(failure_path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0) close(fd);
    const bool first = fd >= 0;
    bool report = false;
    {
        std::lock_guard lock(mutex_);
        report = !reported_;
        reported_ = true;
    }
    if (report) append_report(mine);
    // The others notice the file within 0.1 s and report too. If the first one can't end the job, the rest do.
    std::this_thread::sleep_for(std::chrono::duration<double>(first ? grace_s_.load() : 2 * grace_s_ + 1));
    if (first) {
        append_report(job_report());
        if (courier_) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it takes the table along
        std::fprintf(stderr, "(these reports stand in %s)\n", failure_path().c_str());
    }
    if (options_.on_failure) options_.on_failure(mine);
    throw DeadlineError(mine);
}

int Watch::add_poll(std::function<void()> poll) {
    std::lock_guard lock(polls_mutex_);
    polls_.emplace_back(next_poll_, std::move(poll));
    return next_poll_++;
}

void Watch::remove_poll(int id) {
    std::lock_guard lock(polls_mutex_);
    std::erase_if(polls_, [id](const auto& entry) { return entry.first == id; });
}

bool Watch::stopping() const {
    std::lock_guard lock(mutex_);
    return stop_;
}

void Watch::look_for_stopped() {
    if (disk_work_ == 0) return neighbours_.clear();
    if (beats_ % 5 != 0) return;
    for (int r = 0; r < options_.size; ++r) {
        StatusPage page;
        if (r == options_.rank || !read_status(page_path(r), &page)) continue;
        if (page.heartbeat < 0 || std::strcmp(page.host, page_->host) != 0) continue;  // seen later than it is written
        Neighbour& n = neighbours_[r];
        if (n.heartbeat != page.heartbeat) n.since.restart();
        n.heartbeat = page.heartbeat;
        if (const double silent = n.since.look(); silent > options_.timeout_s)
            throw DeadlineError(
                format("rank %d (pid %d) has not moved for %.1f s (the deadline) while the ranks work with files: "
                       "the process is stopped or dead",
                       r, page.pid, silent));
    }
}

void Watch::run_polls() {
    try {
        std::lock_guard lock(polls_mutex_);
        for (auto& [id, poll] : polls_) poll();
        look_for_stopped();
    } catch (const DeadlineError& error) {
        try {
            expired(error.what());
        } catch (const std::exception&) {  // reported; the waits of the other threads end the process
        }
    } catch (const std::exception& error) {
        fault(error.what());
    }
}

void Watch::loop() {
    while (!stopping()) {
        ++beats_;
        {
            std::lock_guard lock(mutex_);
            page_->heartbeat = now_s();
        }
        run_polls();
        if (access(failure_path().c_str(), F_OK) == 0) {
            bool report = false;
            {
                std::lock_guard lock(mutex_);
                report = !reported_;
                reported_ = true;
            }
            if (report) append_report(own_report(""));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

// Calls neither CUDA nor NCCL.
void Watch::guard() {
    WaitClock since_beat;
    uint64_t beats = 0;
    while (!stopping()) {
        if (const uint64_t now = beats_; now != beats) {
            beats = now;
            since_beat.restart();
        }
        const double waited = since_beat.look();
        if (waited > timeout_s() + 2 * grace_s_ + 2) try {  // later than what the watchdog itself reports
                expired(format("the watchdog has not moved for %.1f s: it hangs in a call of CUDA or NCCL", waited));
            } catch (const std::exception&) {
                since_beat.restart();
            }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

}  // namespace rz
