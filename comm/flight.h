#pragma once
// The flight recorder: what a rank issued, one record an operation, in a file that outlives the process. The control
// plane is apart: its latest message alone is kept.
//
// A record lives until its operation is done and kKeptDone more have been; with kMostOpen open the host waits. Members
// of a group issue the same sequence of operations in it, so equal numbers in a group mean the same operation: what the
// first difference is, and who has not come to the operation that others wait for, tells why a job hangs
// (flight_report.cpp). Dumps are written beside the text, one file a rank, as PyTorch's torchfrtrace reads them
// (flight_pickle.cpp).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rz {

// Purpose of the work that this thread issues from now on; -1: none in particular. Set by whoever knows: the program
// of a step and the optimizer.
struct WorkScope {
    int32_t unit = -1, micro_batch = -1, stage = -1;
};
inline thread_local WorkScope work_scope;

constexpr uint64_t kMostOpen = 65536, kKeptDone = 4096, kSlots = kMostOpen + kKeptDone;

enum class OpState : int32_t { none = 0, queued = 1, running = 2, done = 3 };

struct OpRecord {
    uint64_t seq = 0;     // of this rank, from 1; 0: unused
    uint64_t number = 0;  // in its group, from 1
    int64_t step = 0, bytes = 0;
    double issued = 0, begun = 0, done = 0;  // seconds since the epoch; 0: not yet
    WorkScope work;
    int32_t channel = -1;        // of the page: its group
    int32_t hop = 0;             // message groups started so far
    int32_t to = -1, from = -1;  // world ranks of the latest hop
    OpState state = OpState::none;
    char op[20] = {}, group[20] = {};
};
static_assert(sizeof(OpRecord) == 128);

// A group that the rank is a member of. Its name and its first member, a rank of the job, tell it from other groups.
struct Channel {
    char group[20] = {};
    int32_t first = -1;
    int32_t at = 0, size = 0;  // its members, in StatusPage::members; size 0: not known
    uint64_t issued = 0;
};
constexpr int kChannels = 32, kMembers = 8192;

struct alignas(64) StatusPage {
    uint64_t magic = 0;
    int32_t rank = 0, size = 0, pid = 0, channels_used = 0, members_used = 0, unused = 0;
    char host[64] = {};
    double heartbeat = 0;  // seconds since the epoch; a stopped or dead process leaves it behind. Of a page that was
                           // brought from another host, below zero: seconds ago
    int64_t step = -1;
    uint64_t last_seq = 0, first_open = 1;  // all before it are done; last_seq + 1: all are
    OpRecord control;                       // the latest message of the control plane
    Channel channels[kChannels];
    int32_t members[kMembers];
};

// A rank's page and its records, ascending.
struct Flight {
    StatusPage page;
    std::vector<OpRecord> records;
};

uint64_t status_magic();
// Whatever stands in the file; false if it is no page.
bool read_status(const std::string& path, StatusPage*);
bool read_flight(const std::string& path, Flight*);
// The records of each group around its first operation that is not done: another host needs them for a table.
Flight around_open(const Flight&);
// The first record of each group (by name and first member) that is not done; groups without one have none.
const OpRecord* first_open(const Flight&, int channel);

// "all_reduce #57 of group data, unit 3, micro-batch 0, stage 0 (step 12, 4.00 MiB): running, hop 3, to rank 2, from
// rank 0"
std::string describe(const OpRecord& record);

// Each group with an open operation: the first that is not done, on each rank; then why, of those open for `stuck_s`.
std::string hang_report(const std::map<int, Flight>& flights, double now, double stuck_s = 0);

// A file for torchfrtrace.
std::string pickle_of(const Flight&);

}  // namespace rz
