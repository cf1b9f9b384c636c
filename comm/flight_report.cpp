// Why a job hangs, from the records of its ranks.
//
// First what they issued: the earliest operation of a group that is not the same on all its members is a call that one
// left out, two in the other order, another size, or another operation. Where all agree, one follows who waits for
// whom: from an operation that runs on some members to a member on which it does not, to the oldest operation that is
// open there, and so on, until a rank is found that waits for no other: it is stopped, its host issues nothing, its
// operation is queued behind work that does not end; or all run, and it is a link. A circle is two groups in the other
// order.

#include <algorithm>
#include <cstring>
#include <set>

#include "comm/flight.h"
#include "kernels/runtime/check.h"

namespace rz {

namespace {

constexpr double kSilent = 2;  // seconds: the watchdog of a living process writes every 0.1 s

using GroupId = std::pair<std::string, int>;  // name and first member

struct Member {
    int rank = 0;
    const Channel* channel = nullptr;
    std::vector<const OpRecord*> records;  // ascending by number
    const OpRecord* open = nullptr;        // the first that is not done

    uint64_t position() const { return open ? open->number : channel->issued + 1; }
    const OpRecord* at(uint64_t number) const {
        if (records.empty() || number < records.front()->number) return nullptr;
        const uint64_t i = number - records.front()->number;  // most often none is missing between
        if (i < records.size() && records[size_t(i)]->number == number) return records[size_t(i)];
        const auto it = std::lower_bound(records.begin(), records.end(), number,
                                         [](const OpRecord* r, uint64_t n) { return r->number < n; });
        return it != records.end() && (*it)->number == number ? *it : nullptr;
    }
};

class Report {
   public:
    Report(const std::map<int, Flight>& flights, double now, double stuck_s);
    std::string text() const;

   private:
    std::string table(const GroupId&, const std::vector<Member>&) const;
    std::string verdict() const;
    std::string first_difference() const;
    std::string follow(const GroupId& id, uint64_t number, std::set<std::pair<GroupId, uint64_t>> seen) const;
    std::string why_behind(const GroupId& id, const Member& behind, const OpRecord& others,
                           std::set<std::pair<GroupId, uint64_t>> seen) const;
    double silent(int rank) const {
        const StatusPage& p = flights_.at(rank).page;
        return p.heartbeat < 0 ? -p.heartbeat : now_ - p.heartbeat;
    }

    const std::map<int, Flight>& flights_;
    double now_, stuck_s_;
    std::map<GroupId, std::vector<Member>> groups_;
};

Report::Report(const std::map<int, Flight>& flights, double now, double stuck_s)
    : flights_(flights), now_(now), stuck_s_(stuck_s) {
    for (const auto& [rank, flight] : flights) {
        std::vector<Member> members(size_t(flight.page.channels_used));
        for (const OpRecord& r : flight.records) {
            if (r.channel < 0) continue;
            Member& m = members[size_t(r.channel)];
            m.records.push_back(&r);
            if (!m.open && r.state != OpState::done) m.open = &r;
        }
        for (int c = 0; c < flight.page.channels_used; ++c) {
            members[size_t(c)].rank = rank;
            members[size_t(c)].channel = &flight.page.channels[c];
            groups_[{flight.page.channels[c].group, flight.page.channels[c].first}].push_back(members[size_t(c)]);
        }
    }
}

std::string Report::table(const GroupId& id, const std::vector<Member>& members) const {
    constexpr int kMostLines = 16;
    if (std::none_of(members.begin(), members.end(), [](const Member& m) { return m.open; })) return "";
    uint64_t least = UINT64_MAX;
    for (const Member& m : members) least = std::min(least, m.position());
    std::string text =
        format("group %s from rank %d on, first operation that is not done:\n", id.first.c_str(), id.second);
    int lines = 0;
    for (const Member& m : members) {
        if (int(members.size()) > kMostLines && (m.position() != least || lines == kMostLines)) continue;
        ++lines;
        text += format("  rank %d: ", m.rank);
        text += m.open ? describe(*m.open) + format(", issued %.1f s ago\n", now_ - m.open->issued)
                       : format("all %llu done\n", (unsigned long long)m.channel->issued);
    }
    if (lines < int(members.size())) text += format("  and %d ranks as far or further\n", int(members.size()) - lines);
    return text;
}

bool same_work(const OpRecord& a, const OpRecord& b) {
    return std::strcmp(a.op, b.op) == 0 && a.step == b.step && a.work.unit == b.work.unit &&
           a.work.micro_batch == b.work.micro_batch;
}
bool same(const OpRecord* a, const OpRecord* b) { return a && b && same_work(*a, *b) && a->bytes == b->bytes; }

// Without its state.
std::string name_of(const OpRecord& r) {
    const std::string text = describe(r);
    return text.substr(0, text.rfind("): ") + 1);
}

// `many`: more than half agree with `most`.
std::string difference(const GroupId& id, const Member& most, const Member& odd, uint64_t n, bool many) {
    const OpRecord &a = *most.at(n), &b = *odd.at(n);
    const OpRecord *a2 = most.at(n + 1), *b2 = odd.at(n + 1);
    const std::string group = id.first;
    if (same(&a, b2) && same(a2, &b))
        return format(
            "swapped order: #%llu and #%llu of group %s are [%s] and [%s] on rank %d, the other way round on rank %d",
            (unsigned long long)n, (unsigned long long)n + 1, group.c_str(), name_of(a).c_str(), name_of(b).c_str(),
            most.rank, odd.rank);
    const auto missing = [&](const Member& by, const Member& from, const OpRecord& op) {
        return format("missing call: rank %d left out [%s], which rank %d has issued; its #%llu is [%s]", by.rank,
                      name_of(op).c_str(), from.rank, (unsigned long long)n, name_of(*by.at(n)).c_str());
    };
    if (same(a2, &b)) return missing(odd, most, a);
    if (same(&a, b2) && !many) return missing(most, odd, b);
    if (same(&a, b2))
        return format("extra call: rank %d issued [%s], which the others did not", odd.rank, name_of(b).c_str());
    if (same_work(a, b))
        return format("different size: rank %d issued [%s] with %lld B, rank %d with %lld B", odd.rank,
                      name_of(b).c_str(), (long long)b.bytes, most.rank, (long long)a.bytes);
    return format("different operations: #%llu of group %s is [%s] on rank %d and [%s] on rank %d",
                  (unsigned long long)n, group.c_str(), name_of(a).c_str(), most.rank, name_of(b).c_str(), odd.rank);
}

// "": all that is known agrees.
std::string Report::first_difference() const {
    std::string text;
    double earliest = 0;
    for (const auto& [id, members] : groups_) {
        uint64_t from = 1, to = UINT64_MAX;
        for (const Member& m : members) {
            from = std::max(from, m.records.empty() ? UINT64_MAX : m.records.front()->number);
            to = std::min(to, m.records.empty() ? 0 : m.records.back()->number);
        }
        for (uint64_t n = from; n <= to; ++n) {
            const OpRecord* first = members[0].at(n);
            const bool all = std::all_of(members.begin(), members.end(), [&](const Member& m) { return m.at(n); });
            if (!all ||
                std::all_of(members.begin(), members.end(), [&](const Member& m) { return same(m.at(n), first); }))
                continue;
            const auto agree = [&](const Member& with) {
                return std::count_if(members.begin(), members.end(),
                                     [&](const Member& m) { return same(m.at(n), with.at(n)); });
            };
            const Member* most = &members[0];
            for (const Member& m : members)
                if (agree(m) > agree(*most)) most = &m;
            const Member& odd = *std::find_if(members.begin(), members.end(),
                                              [&](const Member& m) { return !same(m.at(n), most->at(n)); });
            if (text.empty() || most->at(n)->issued < earliest) {
                text = difference(id, *most, odd, n, 2 * agree(*most) > long(members.size()));
                earliest = most->at(n)->issued;
            }
            break;
        }
    }
    return text;
}

// `others` runs or waits for it.
std::string Report::why_behind(const GroupId& id, const Member& behind, const OpRecord& others,
                               std::set<std::pair<GroupId, uint64_t>> seen) const {
    const Flight& f = flights_.at(behind.rank);
    const std::string waits = format("the others wait in [%s]", name_of(others).c_str());
    const std::string who = format("rank %d (%s, pid %d)", behind.rank, f.page.host, f.page.pid);
    if (const double s = silent(behind.rank); s > kSilent)
        return format("stopped process: %s has been silent for %.1f s, it is stopped or dead; ", who.c_str(), s) +
               waits;
    const auto oldest =
        std::find_if(f.records.begin(), f.records.end(), [](const OpRecord& r) { return r.state != OpState::done; });
    if (oldest != f.records.end() && oldest->state == OpState::running && oldest->channel >= 0) {
        const Channel& c = f.page.channels[oldest->channel];
        const GroupId next{c.group, c.first};
        if (next != id || oldest->number != others.number) return follow(next, oldest->number, std::move(seen));
    }
    if (oldest != f.records.end())
        return format("a kernel that never ends, or other work of its streams: on %s [%s] is queued behind it; ",
                      who.c_str(), name_of(*oldest).c_str()) +
               waits;
    if (f.page.control.state == OpState::running)
        return format("missing call: %s has gone on to the control plane and not issued [%s], in which the others wait",
                      who.c_str(), name_of(others).c_str());
    return format(
        "a host that does not come on: %s computes or waits and has not issued [%s], in which the others wait",
        who.c_str(), name_of(others).c_str());
}

// Whom operation `number` of a group waits for.
std::string Report::follow(const GroupId& id, uint64_t number, std::set<std::pair<GroupId, uint64_t>> seen) const {
    const std::vector<Member>& members = groups_.at(id);
    const OpRecord* op = nullptr;
    for (const Member& m : members)
        if (!op || (m.at(number) && m.at(number)->state == OpState::running)) op = m.at(number) ? m.at(number) : op;
    if (!op) return "";
    if (!seen.insert({id, number}).second) {
        std::string text = "swapped order: each waits for the other:";
        for (const auto& [group, n] : seen)
            for (const Member& m : groups_.at(group))
                if (const OpRecord* r = m.at(n); r && r->state == OpState::running)
                    text += format(" rank %d in [%s]", m.rank, name_of(*r).c_str());
        return text;
    }
    const auto stopped = std::find_if(members.begin(), members.end(), [&](const Member& m) {
        return silent(m.rank) > kSilent && m.position() <= number;
    });
    if (stopped != members.end()) return why_behind(id, *stopped, *op, std::move(seen));
    const Member* slow = nullptr;  // of those on which it runs
    for (const Member& m : members) {
        const OpRecord* here = m.at(number);
        if (here && here->state == OpState::done) continue;
        if (!here || here->state == OpState::queued) return why_behind(id, m, *op, std::move(seen));
        if (!slow || here->hop < slow->at(number)->hop) slow = &m;
    }
    if (!slow) return "";
    const Channel& c = *slow->channel;
    const int32_t* all = &flights_.at(slow->rank).page.members[c.at];
    for (int i = 0; i < c.size; ++i)
        if (!flights_.count(all[i]))
            return format("rank %d cannot be seen from here; the others wait in [%s]", all[i], name_of(*op).c_str());
    const OpRecord& r = *slow->at(number);
    return format("a link, or a kernel of the library: all have begun [%s]; rank %d is at hop %d%s%s",
                  name_of(r).c_str(), slow->rank, r.hop, r.from >= 0 ? format(" from rank %d", r.from).c_str() : "",
                  r.to >= 0 ? format(" to rank %d", r.to).c_str() : "");
}

std::string Report::verdict() const {
    if (const std::string text = first_difference(); !text.empty()) return text;
    std::vector<std::pair<double, std::string>> found;
    for (const auto& [id, members] : groups_)
        for (const Member& m : members)
            if (m.open && now_ - m.open->issued >= stuck_s_)
                found.emplace_back(m.open->issued, follow(id, m.open->number, {}));
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [issued, text] : found)
        if (!text.empty()) return text;
    for (const auto& [rank, flight] : flights_)
        if (silent(rank) > kSilent)
            return format("stopped process: rank %d (%s, pid %d) has been silent for %.1f s, it is stopped or dead",
                          rank, flight.page.host, flight.page.pid, silent(rank));
    return "";
}

std::string Report::text() const {
    std::string text;
    for (const auto& [id, members] : groups_) text += table(id, members);
    const std::string why = verdict();
    return text + (why.empty() ? "" : "verdict: " + why + "\n");
}

}  // namespace

std::string hang_report(const std::map<int, Flight>& flights, double now, double stuck_s) {
    return Report(flights, now, stuck_s).text();
}

}  // namespace rz
