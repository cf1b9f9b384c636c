#include "comm/flight.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/runtime/check.h"

namespace rz {

uint64_t status_magic() { return 0x72696e677a65726full; }  // "ringzero"

std::string describe(const OpRecord& r) {
    static const char* const kStates[] = {"unused", "queued", "running", "done"};
    std::string text = format("%s #%llu of group %s", r.op, (unsigned long long)r.number, r.group);
    if (r.work.unit >= 0) text += format(", unit %d", r.work.unit);
    if (r.work.micro_batch >= 0) text += format(", micro-batch %d", r.work.micro_batch);
    if (r.work.stage >= 0) text += format(", stage %d", r.work.stage);
    text += format(" (step %lld, %s): %s", (long long)r.step, human_bytes(r.bytes).c_str(), kStates[int(r.state)]);
    if (r.state != OpState::running) return text;
    text += format(", hop %d", r.hop);
    if (r.to >= 0) text += format(", to rank %d", r.to);
    if (r.from >= 0) text += format(", from rank %d", r.from);
    return text;
}

// ---- reading --------------------------------------------------------------------------------------------------------

namespace {

// False: it is no record of this page.
bool mend(OpRecord& r, int channels, uint64_t last_seq) {
    r.op[sizeof r.op - 1] = r.group[sizeof r.group - 1] = '\0';
    if (r.channel >= channels) r.channel = -1;
    return r.seq > 0 && r.seq <= last_seq && r.state > OpState::none && r.state <= OpState::done;
}

bool mend(StatusPage& page) {
    page.host[sizeof page.host - 1] = '\0';
    page.channels_used = std::clamp(page.channels_used, 0, kChannels);
    for (Channel& c : page.channels) {
        c.group[sizeof c.group - 1] = '\0';
        if (c.size < 0 || c.at < 0 || c.size > kMembers || c.at > kMembers - c.size) c.at = c.size = 0;
    }
    if (!mend(page.control, 0, UINT64_MAX)) page.control = OpRecord{};
    return page.magic == status_magic();
}

class File {
   public:
    explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    ~File() {
        if (fd_ >= 0) close(fd_);
    }
    size_t read_up_to(void* to, size_t bytes) {
        size_t got = 0;
        for (ssize_t n = 1; fd_ >= 0 && got < bytes && n > 0; got += size_t(std::max<ssize_t>(n, 0)))
            n = read(fd_, static_cast<char*>(to) + got, bytes - got);
        return got;
    }

   private:
    int fd_;
};

}  // namespace

bool read_status(const std::string& path, StatusPage* page) {
    return File(path).read_up_to(page, sizeof *page) == sizeof *page && mend(*page);
}

bool read_flight(const std::string& path, Flight* flight) {
    File file(path);
    if (file.read_up_to(&flight->page, sizeof flight->page) != sizeof flight->page || !mend(flight->page)) return false;
    flight->records.resize(kSlots);
    flight->records.resize(file.read_up_to(flight->records.data(), kSlots * sizeof(OpRecord)) / sizeof(OpRecord));
    std::erase_if(flight->records,
                  [&](OpRecord& r) { return !mend(r, flight->page.channels_used, flight->page.last_seq); });
    std::sort(flight->records.begin(), flight->records.end(),
              [](const OpRecord& a, const OpRecord& b) { return a.seq < b.seq; });
    return true;
}

const OpRecord* first_open(const Flight& f, int channel) {
    for (const OpRecord& r : f.records)
        if (r.channel == channel && r.state != OpState::done) return &r;
    return nullptr;
}

Flight around_open(const Flight& f) {
    constexpr size_t kEachSide = 16;
    Flight some{f.page, {}};
    for (int c = 0; c < f.page.channels_used; ++c) {
        std::vector<const OpRecord*> all;
        for (const OpRecord& r : f.records)
            if (r.channel == c) all.push_back(&r);
        const size_t open =
            size_t(std::find_if(all.begin(), all.end(), [](const OpRecord* r) { return r->state != OpState::done; }) -
                   all.begin());
        for (size_t i = open - std::min(open, kEachSide); i < std::min(all.size(), open + kEachSide); ++i)
            some.records.push_back(*all[i]);
    }
    std::sort(some.records.begin(), some.records.end(),
              [](const OpRecord& a, const OpRecord& b) { return a.seq < b.seq; });
    return some;
}

}  // namespace rz
