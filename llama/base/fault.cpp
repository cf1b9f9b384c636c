#include "llama/base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "kernels/runtime/check.h"
#include "llama/base/text.h"

namespace rz {

namespace {

struct Point {
    const char *name, *where;
};
constexpr Point kPoints[] = {
    {"start", "before anything is read or allocated"},
    {"step", "at the top of every training step"},
    {"gradient", "before a step's first backward pass; nan, inf: an element of this rank's gradients"},
    {"recheck", "where a unit's gradients are compared (--recheck-every); flip: one of their bits"},
    {"wire", "where a message has arrived (--check-wire); flip: one of its bits"},
    {"loss", "where a step's loss is judged; spike: ten times this rank's loss"},
    {"weights", "after a step's update; flip: one bit of one parameter of this rank, nan: all of them"},
    {"masters", "the same of its master weights"},
    {"moments", "the same of AdamW's m"},
    {"end", "after the last step, before the final weights are written"},
    {"data.read", "before each sample is read from its shard"},
    {"file.open", "before a file is created for writing"},
    {"file.write", "before each write"},
    {"file.fsync", "before each fsync of a file"},
    {"file.close", "before a written file is closed"},
    {"file.rename", "before a file gets its real name"},
    {"file.read", "before each read of a small file (configuration, manifest)"},
    {"log.write", "before each line of metrics.jsonl"},
    {"checkpoint.mkdir", "before a checkpoint's temporary folder is made"},
    {"checkpoint.made", "after it was made"},
    {"checkpoint.snapshot", "before the state is copied"},
    {"checkpoint.shard", "before each of this rank's state files is written; errno too"},
    {"checkpoint.shard.done", "after each of them was written and before its fsync"},
    {"checkpoint.fsync", "before each fsync of a state file; errno too"},
    {"checkpoint.agreed", "after all ranks wrote theirs, before the manifest"},
    {"checkpoint.manifest", "before the manifest is written; errno too"},
    {"checkpoint.manifest.done", "after it was written"},
    {"checkpoint.rename", "before the folder gets its real name; errno too"},
    {"checkpoint.renamed", "after it got it"},
    {"checkpoint.latest", "before the hint `latest` is written; errno too"},
    {"checkpoint.gc", "before each old checkpoint is removed"},
    {"checkpoint.gc.done", "after it was removed"},
    {"snapshot.arrived", "after each piece of another host's snapshot; errno: a bit of it changes"},
    {"snapshot.share", "before a host that has another's slices says which; errno: what it says is cut"},
    {"resume.manifest", "before a manifest is read; errno too"},
    {"resume.shard", "before each state file is read; errno too"},
    {"resume.done", "after the state was loaded"},
};

struct Action {
    const char* name;
    FaultAction action;
    int number = 0;  // of the signal that this process gets, or the errno with which a system call fails
};
constexpr Action kActions[] = {
    {"kill", FaultAction::signal, SIGKILL},
    {"stop", FaultAction::signal, SIGSTOP},
    {"term", FaultAction::signal, SIGTERM},
    {"usr1", FaultAction::signal, SIGUSR1},
    {"int", FaultAction::signal, SIGINT},
    {"sleep", FaultAction::sleep},
    {"error", FaultAction::error},
    {"eio", FaultAction::system_call, EIO},
    {"enospc", FaultAction::system_call, ENOSPC},
    {"efbig", FaultAction::system_call, EFBIG},
    {"eacces", FaultAction::system_call, EACCES},
    {"estale", FaultAction::system_call, ESTALE},
    {"nan", FaultAction::nan},
    {"inf", FaultAction::inf},
    {"flip", FaultAction::flip},
    {"spike", FaultAction::spike},
};

bool is_number(const std::string& text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

template <class Table>
[[noreturn]] void no_such(const char* what, const std::string& name, const Table& table) {
    std::vector<std::string> names;
    for (const auto& row : table) names.emplace_back(row.name);
    fail("FAULT: there is no %s '%s'; nearest: %s", what, name.c_str(), nearest_name(name, names).c_str());
}

void parse_action(const std::string& text, FaultSpec& spec) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const Action* found = nullptr;
    for (const Action& a : kActions)
        if (name == a.name) found = &a;
    if (!found) no_such("action", name, kActions);
    spec.action = found->action, spec.number = found->number;
    require((equals != std::string::npos) == (spec.action == FaultAction::sleep),
            "FAULT: '%s': sleep takes a time (sleep=2.5), the other actions take nothing", text.c_str());
    if (spec.action != FaultAction::sleep) return;
    char* end = nullptr;
    spec.seconds = std::strtod(text.c_str() + equals + 1, &end);
    require(*end == '\0' && end != text.c_str() + equals + 1 && spec.seconds >= 0, "FAULT: '%s' is no time in seconds",
            text.c_str());
}

FaultSpec parse_fault(const std::string& text) {
    const std::vector<std::string> fields = split(text, ':');
    FaultSpec spec{.point = fields[0]};
    bool known = false;
    for (const Point& p : kPoints) known = known || spec.point == p.name;
    if (!known) no_such("point", spec.point, kPoints);
    int numbers = 0;
    for (size_t i = 1; i < fields.size(); ++i) {
        std::string f = fields[i];
        const bool onwards = !f.empty() && f.back() == '+';
        if (onwards) f.pop_back();
        if (f == "*" || is_number(f)) {
            require(numbers < 2 && !(onwards && (numbers == 0 || f == "*")),
                    "FAULT: '%s' is not point[:rank][:nth][:action]", text.c_str());
            if (++numbers == 1) {
                spec.rank = f == "*" ? -1 : std::atoi(f.c_str());
            } else {
                spec.first = f == "*" ? 1 : std::atoi(f.c_str());
                spec.last = f == "*" || onwards ? INT64_MAX : spec.first;
                require(spec.first > 0, "FAULT: '%s': times are counted from 1", text.c_str());
            }
        } else {
            require(i + 1 == fields.size(), "FAULT: '%s' is not point[:rank][:nth][:action]", text.c_str());
            parse_action(fields[i], spec);
        }
    }
    return spec;
}

void act(const FaultSpec& spec, int rank, const char* point, int64_t hit) {
    std::fprintf(stderr, "fault: rank %d reached %s, hit %ld\n", rank, point, hit);
    std::fflush(stderr);
    if (spec.action == FaultAction::signal) {
        ::raise(spec.number);  // in this thread: a handler has run when this returns
        if (spec.number == SIGKILL || spec.number == SIGSTOP) ::usleep(100000);  // the whole process, in a moment
    }
    if (spec.action == FaultAction::sleep) ::usleep(useconds_t(spec.seconds * 1e6));
    if (spec.action == FaultAction::error) fail("fault: an error at %s", point);
}

}  // namespace

std::vector<FaultSpec> parse_faults(const std::string& text) {
    std::vector<FaultSpec> specs;
    if (text.empty()) return specs;
    for (const std::string& one : split(text, ',')) specs.push_back(parse_fault(one));
    return specs;
}

namespace detail {

class FaultState : public std::enable_shared_from_this<FaultState> {
   public:
    FaultState(int rank, const std::string& text) : rank_(rank) {
        for (const FaultSpec& s : parse_faults(text))
            if (s.rank < 0 || s.rank == rank) armed_.push_back({s});
    }
    bool any() const { return !armed_.empty(); }

    // The event that has happened at the point: the last of several.
    FaultSpec hit(const char* point) {
        FaultSpec result{.point = point, .action = FaultAction::none};
        std::vector<std::pair<FaultSpec, int64_t>> due;
        {
            std::lock_guard lock(mutex_);
            for (Armed& a : armed_) {
                if (a.spec.point != point) continue;
                ++a.hits;
                if (a.hits >= a.spec.first && a.hits <= a.spec.last) due.emplace_back(a.spec, a.hits);
            }
        }
        for (const auto& [spec, hit] : due) {
            act(spec, rank_, point, hit);
            result = spec;
        }
        return result;
    }

   private:
    struct Armed {
        FaultSpec spec;
        int64_t hits = 0;
    };
    int rank_;
    std::mutex mutex_;
    std::vector<Armed> armed_;
};

FaultAction fault_hit(const char* point) { return faults->hit(point).action; }

int fault_errno_hit(const char* point) {
    const FaultSpec hit = faults->hit(point);
    return hit.action == FaultAction::system_call ? hit.number : 0;
}

}  // namespace detail

Faults::Faults(int rank) {
    const char* text = std::getenv("FAULT");
    *this = Faults(rank, text ? text : "");
}

Faults::Faults(int rank, const std::string& text) {
    auto state = std::make_shared<detail::FaultState>(rank, text);
    if (state->any()) state_ = std::move(state);
}

Faults Faults::here() {
    Faults faults;
    if (detail::faults) faults.state_ = detail::faults->shared_from_this();
    return faults;
}

FaultScope::FaultScope(Faults faults)
    : faults_(std::move(faults)), before_(std::exchange(detail::faults, faults_.state_.get())) {}

FaultScope::~FaultScope() { detail::faults = before_; }

}  // namespace rz
