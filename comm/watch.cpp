#include "comm/watch.h"

#include <fcntl.h>
#include <signal.h>
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

static constexpr size_t kMapped = sizeof(StatusPage) + kSlots * sizeof(OpRecord);
static constexpr double kSilentS = 2;  // the watchdog of a living process writes every 0.1 s
static constexpr double kLongS = 5;    // an operation that is open for less hangs in no job that goes on
static std::atomic<int> dump_signals = 0;

static double now_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

static void set_name(char* to, size_t size, const char* from) {
    std::strncpy(to, from, size - 1);
    to[size - 1] = '\0';
}

static void append(const std::string& path, const std::string& text) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    if (write(fd, text.data(), text.size()) < 0) std::perror(path.c_str());
    close(fd);
}

static std::string page_in(const std::string& directory, int rank) {
    return directory + "/rank" + std::to_string(rank) + ".status";
}

// Outlives the Watch if its thread hangs in a file system, so it has nothing of it.
struct Watch::HostSync {
    std::string own, shared;  // folders
    int rank, size;
    std::atomic<bool> stop = false;
    std::mutex mutex;
    std::map<int, Flight> brought;  // of ranks that can't be seen from here
    std::string outgoing;           // for the shared failure.txt
    bool delivered = true;          // all of it

    static void run(const std::shared_ptr<HostSync>& c) {
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
            {
                const std::lock_guard lock(c->mutex);
                c->delivered = c->outgoing.empty();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(failed ? 100 : 500));
        }
    }
    // For a while: it may hang in a file system.
    void wait_for_delivery() {
        for (int i = 0; i < 100; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            const std::lock_guard lock(mutex);
            if (delivered) return;
        }
    }
    // The pages of this host, those of ranks too that are stopped or dead.
    void hand_over() {
        append(shared + "/failure.txt", "");
        for (int r = 0; r < size; ++r) {
            Flight flight;
            if (!read_flight(page_in(own, r), &flight)) continue;
            flight = around_open(flight);
            flight.page.heartbeat -= now_s();  // clocks of other hosts differ: below zero it says how long ago
            const std::string path = page_in(shared, r), part = path + "." + std::to_string(rank);
            unlink(part.c_str());
            append(part, std::string(reinterpret_cast<const char*>(&flight.page), sizeof flight.page) +
                             std::string(reinterpret_cast<const char*>(flight.records.data()),
                                         flight.records.size() * sizeof(OpRecord)));
            if (rename(part.c_str(), path.c_str()) != 0) std::perror(path.c_str());
        }
    }
    void collect() {
        for (int r = 0; r < size; ++r) {
            Flight flight;
            if (!read_flight(page_in(shared, r), &flight)) continue;
            const std::lock_guard lock(mutex);
            brought[r] = std::move(flight);
        }
    }
};

void Watch::share(const std::string& directory) {
    if (!mapped_) return;
    require(!host_sync_, "records are handed over in %s already", host_sync_->shared.c_str());
    host_sync_ = std::make_shared<HostSync>();
    host_sync_->own = options_.directory, host_sync_->shared = directory;
    host_sync_->rank = options_.rank, host_sync_->size = options_.size;
    grace_s_ = 3 * options_.grace_s;  // two couriers' rounds and a network file system
    std::thread([c = host_sync_] { HostSync::run(c); }).detach();
}

Watch::Watch(Options options) : options_(std::move(options)), grace_s_(options_.grace_s) {
    void* memory = nullptr;
    if (!options_.directory.empty()) {
        const std::string path = page_path(options_.rank);
        const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        // Reserved: a page of a mapping that finds no room on a full disk would end the program by SIGBUS.
        const int error = fd < 0 ? errno : posix_fallocate(fd, 0, kMapped);
        if (fd >= 0 && error != 0) close(fd);
        require(error == 0,
                "can't make the status page %s: %s\n  free some space there, or set TMPDIR to a folder that has some",
                path.c_str(), std::strerror(error));
        memory = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        mapped_ = true;
    } else {
        memory = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    require(memory != MAP_FAILED, "cannot map the status page: %s", std::strerror(errno));
    page_ = new (memory) StatusPage;
    slots_ = reinterpret_cast<OpRecord*>(page_ + 1);  // zeros: unused
    page_->rank = options_.rank;
    page_->size = options_.size;
    page_->pid = int(getpid());
    std::snprintf(page_->host, sizeof page_->host, "%s", host_name().c_str());
    page_->heartbeat = now_s();
    page_->magic = status_magic();
    signals_seen_ = dump_signals;
    if (!mapped_) return;
    thread_ = std::thread([this] { loop(); });
    guard_ = std::thread([this] { guard(); });
}

Watch::~Watch() {
    if (host_sync_) host_sync_->stop = true;
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    if (thread_.joinable()) thread_.join();
    if (guard_.joinable()) guard_.join();
    munmap(page_, kMapped);
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

void Watch::join(const char* group, const std::vector<int>& members) {
    std::lock_guard lock(mutex_);
    const int c = channel(group, members[0]);
    if (c < 0 || page_->channels[c].size > 0 || int(members.size()) > kMembers - page_->members_used) return;
    page_->channels[c].at = page_->members_used;
    page_->channels[c].size = int32_t(members.size());
    for (const int m : members) page_->members[page_->members_used++] = m;
}

// The oldest open operation is what a report is about, so its record is never overwritten. Whoever waits for it ends
// the job at the deadline; this wait is longer.
void Watch::wait_for_room(std::unique_lock<std::mutex>& lock) {
    WaitClock clock;
    while (page_->last_seq + 1 - page_->first_open >= kMostOpen) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (const double waited = clock.look(); waited > timeout_s() + 2 * grace_s_ + 2)
            fail_deadline(format("waited %.1f s to issue an operation: %llu are not done", waited,
                                 (unsigned long long)kMostOpen));
        lock.lock();
    }
}

uint64_t Watch::queue(const char* op, const char* group, int first, int64_t bytes) {
    std::unique_lock lock(mutex_);
    if (page_->last_seq + 1 - page_->first_open >= kMostOpen) wait_for_room(lock);
    const uint64_t seq = page_->last_seq + 1;
    OpRecord& r = slot(seq);
    r = OpRecord{};
    r.channel = channel(group, first);
    if (r.channel >= 0) r.number = ++page_->channels[r.channel].issued;
    r.step = page_->step;
    r.bytes = bytes;
    r.issued = now_s();
    r.work = work_scope;
    r.state = OpState::queued;
    set_name(r.op, sizeof r.op, op);
    set_name(r.group, sizeof r.group, group);
    r.seq = page_->last_seq = seq;
    return seq;
}

void Watch::running(uint64_t seq, int to, int from) {
    const double now = now_s();
    std::lock_guard lock(mutex_);
    OpRecord& r = slot(seq);
    if (r.seq != seq) return;
    if (r.state == OpState::queued) r.begun = now;
    r.state = OpState::running;
    r.hop += 1;
    r.to = to;
    r.from = from;
}

OpRecord Watch::record(uint64_t seq) const {
    std::lock_guard lock(mutex_);
    return slot(seq).seq == seq ? slot(seq) : OpRecord{};
}

std::string Watch::name_of(uint64_t seq, const std::string& group) const {
    const OpRecord r = record(seq);
    return r.seq != 0 && group == r.group
               ? "[" + describe(r) + "]"
               : format("operation #%llu of group %s", (unsigned long long)seq, group.c_str());
}

void Watch::done(uint64_t seq) {
    const double now = now_s();
    std::lock_guard lock(mutex_);
    OpRecord& r = slot(seq);
    if (r.seq != seq) return;
    r.state = OpState::done;
    r.done = now;
    while (page_->first_open <= page_->last_seq && slot(page_->first_open).state == OpState::done) ++page_->first_open;
}

uint64_t Watch::begin_control(int64_t bytes, int to, int from) {
    std::lock_guard lock(mutex_);
    OpRecord r;
    r.seq = r.number = page_->control.seq + 1;
    r.step = page_->step;
    r.bytes = bytes;
    r.issued = r.begun = now_s();
    r.state = OpState::running;
    r.hop = 1, r.to = to, r.from = from;
    set_name(r.op, sizeof r.op, "message");
    set_name(r.group, sizeof r.group, "control");
    page_->control = r;
    return r.seq;
}

void Watch::end_control() {
    std::lock_guard lock(mutex_);
    page_->control.state = OpState::done;
    page_->control.done = now_s();
}

bool Watch::flight_of(int rank, Flight* flight) const {
    if (rank == options_.rank) {
        std::lock_guard lock(mutex_);
        flight->page = *page_;
        flight->page.heartbeat = now_s();  // it asks, so it lives, also where its watchdog hangs
        flight->records.clear();
        const uint64_t last = page_->last_seq;
        for (uint64_t s = last >= kSlots ? last - kSlots + 1 : 1; s <= last; ++s) flight->records.push_back(slot(s));
        return true;
    }
    if (!mapped_) return false;
    if (read_flight(page_path(rank), flight)) return true;
    if (!host_sync_) return false;
    const std::lock_guard lock(host_sync_->mutex);
    const auto it = host_sync_->brought.find(rank);
    if (it != host_sync_->brought.end()) *flight = it->second;
    return it != host_sync_->brought.end();
}

std::string Watch::own_report(const std::string& waiting_for) const {
    Flight f;
    flight_of(options_.rank, &f);
    std::string text = format("rank %d of %d (%s, pid %d), step %lld", f.page.rank, f.page.size, f.page.host,
                              f.page.pid, (long long)f.page.step);
    text += waiting_for.empty() ? ": ends because another rank gave up" : ": " + waiting_for;
    text += "\n  first operation of each group that is not done:\n";
    bool any = false;
    for (int c = 0; c < f.page.channels_used; ++c)
        if (const OpRecord* open = first_open(f, c)) {
            text += "    " + describe(*open) + format(", issued %.1f s ago\n", now_s() - open->issued);
            any = true;
        }
    if (f.page.control.state == OpState::running)
        text += "    " + describe(f.page.control) + format(", %.1f s ago\n", now_s() - f.page.control.issued);
    else if (!any)
        text += "    none is open\n";
    return text;
}

std::string Watch::job_report(double stuck_s) const {
    std::map<int, Flight> flights;
    for (int r = 0; r < options_.size; ++r)
        if (Flight f; flight_of(r, &f)) flights[r] = std::move(f);
    std::string text = "all ranks:\n";
    for (int r = 0; r < options_.size; ++r) {
        if (!flights.count(r)) {
            text += format("  rank %d: cannot be seen from here (another host, or it never started)\n", r);
            continue;
        }
        const StatusPage& p = flights[r].page;
        const double silent = p.heartbeat < 0 ? -p.heartbeat : now_s() - p.heartbeat;
        text += format("  rank %d (%s, pid %d): step %lld, issued %llu operations, %llu open", r, p.host, p.pid,
                       (long long)p.step, (unsigned long long)p.last_seq,
                       (unsigned long long)(p.last_seq + 1 - p.first_open));
        if (p.control.state == OpState::running) text += ", in the control plane";
        if (silent > kSilentS) text += format(", silent for %.1f s: the process is stopped or dead", silent);
        text += "\n";
    }
    return text + hang_report(flights, now_s(), stuck_s);
}

// ---- dumps ----------------------------------------------------------------------------------------------------------

void Watch::install_dump_signal() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++dump_signals; };
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR2, &action, nullptr);
}

std::string Watch::request_path(int number) const { return options_.directory + "/dump-" + std::to_string(number); }

static bool make_new(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

bool Watch::make_dump_folder() const { return mkdir(dump_folder().c_str(), 0755) == 0 || errno == EEXIST; }

// Only if there is a folder for it: an error that is no hang makes none.
void Watch::dump(int rank) const {
    Flight f;
    if (access(dump_folder().c_str(), F_OK) != 0 || !flight_of(rank, &f)) return;
    const std::string path = dump_folder() + "/rank_" + std::to_string(rank);
    const std::string part = options_.directory + "/rank_" + std::to_string(rank) + ".part";
    unlink(part.c_str());
    append(part, pickle_of(f));
    if (rename(part.c_str(), path.c_str()) != 0) std::perror(path.c_str());
}

void Watch::dump_all() const {
    if (!mapped_ || !make_dump_folder()) return;
    for (int r = 0; r < options_.size; ++r) dump(r);
}

void Watch::ask_for_dump(int number) {
    if (mapped_ && number > dumps_ && make_dump_folder()) make_new(request_path(number));
}

void Watch::look_for_requests() {
    bool speaks = false;
    if (const int signals = dump_signals; signals != signals_seen_) {
        signals_seen_ = signals;
        speaks = make_dump_folder() && make_new(request_path(dumps_ + 1));
    }
    if (access(request_path(dumps_ + 1).c_str(), F_OK) != 0) return;
    ++dumps_;
    dump(options_.rank);
    if (!speaks) return;
    dump_all();
    const std::string text = format("rank %d has SIGUSR2, the job goes on; ", options_.rank) + job_report(kLongS) +
                             format("(records for torchfrtrace stand in %s)\n", dump_folder().c_str());
    append(options_.directory + "/flight.txt", text);
    std::fputs(text.c_str(), stderr);
}

void Watch::append_report(const std::string& text) const {
    append(failure_path(), text);
    if (host_sync_) {
        const std::lock_guard lock(host_sync_->mutex);
        host_sync_->outgoing += text;
        host_sync_->delivered = false;
    }
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
}

void Watch::fail_deadline(const std::string& waiting_for) {
    const std::string mine = own_report(waiting_for);
    if (options_.directory.empty()) {
        if (options_.on_failure) options_.on_failure(mine);
        throw DeadlineError(mine);
    }
    make_dump_folder();
    const bool first = make_new(failure_path());
    bool report = false;
    {
        std::lock_guard lock(mutex_);
        report = !reported_;
        reported_ = true;
    }
    if (report) append_report(mine), dump(options_.rank);
    // The others notice the file within 0.1 s and report too. If the first one can't end the job, the rest do.
    std::this_thread::sleep_for(std::chrono::duration<double>(first ? grace_s_.load() : 2 * grace_s_ + 1));
    if (first) {
        append_report(job_report());
        dump_all();
        if (host_sync_) host_sync_->wait_for_delivery();  // it takes the table along
        std::fprintf(stderr, "(these reports stand in %s, records for torchfrtrace in %s)\n", failure_path().c_str(),
                     dump_folder().c_str());
    }
    if (options_.on_failure) options_.on_failure(mine), abandon();
    throw DeadlineError(mine);
}

int Watch::add_poll(std::function<void()> poll, std::function<void()> abandon) {
    std::lock_guard lock(polls_mutex_);
    polls_.push_back({next_poll_, std::move(poll), std::move(abandon)});
    return next_poll_++;
}

void Watch::remove_poll(int id) {
    std::lock_guard lock(polls_mutex_);
    std::erase_if(polls_, [id](const Poll& entry) { return entry.id == id; });
}

void Watch::abandon() {
    const std::unique_lock lock(polls_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    for (const Poll& entry : polls_)
        if (entry.abandon) entry.abandon();
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
        for (const Poll& entry : polls_) entry.poll();
        look_for_stopped();
    } catch (const DeadlineError& error) {
        try {
            fail_deadline(error.what());
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
            if (report) append_report(own_report("")), dump(options_.rank);
        }
        look_for_requests();
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
                fail_deadline(
                    format("the watchdog has not moved for %.1f s: it hangs in a call of CUDA or NCCL", waited));
            } catch (const std::exception&) {
                since_beat.restart();
            }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

}  // namespace rz
