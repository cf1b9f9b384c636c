#include "llama/report/memory_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"
#include "llama/report/html.h"
#include "llama/report/plot.h"

namespace rz {

namespace {

constexpr size_t kMemKinds = size_t(MemKind::count_);
// Parameters, gradients and the optimizer's state as in dev/pictures/flat_buffer.svg.
constexpr const char* kKindColours[kMemKinds] = {"#3b82f6", "#e8710a", "#64748b", "#b58900",
                                                 "#10a37f", "#c026d3", "#bbbbbb", "#22b8cf"};
constexpr double kMapWidth = 1100, kMapHeight = 560, kMapLeft = 80, kMapRight = 20, kMapTop = 80, kMapBottom = 44;

struct MemoryBar {
    std::string name;
    MemKind kind;
    int64_t bytes, at = 0;  // at: bytes below it
    double begin, end;
};

using Changes = std::vector<MemoryChange>;

// Frees are paired with their allocations: a buffer that is older than the list is left out.
constexpr size_t kOlder = SIZE_MAX;
std::vector<size_t> taken_at(const Changes& changes) {
    std::vector<size_t> at(changes.size(), kOlder);
    std::multimap<std::tuple<DeviceKind, std::string, int64_t>, size_t> live;
    for (size_t i = 0; i < changes.size(); ++i) {
        const MemoryChange& c = changes[i];
        if (c.bytes > 0) {
            at[i] = i;
            live.emplace(std::tuple(c.where, c.name, c.bytes), i);
        } else if (const auto found = live.find({c.where, c.name, -c.bytes}); found != live.end()) {
            at[i] = found->second;
            live.erase(found);
        }
    }
    return at;
}

std::vector<MemoryBar> bars_of(const Changes& changes, DeviceKind side, double begin, double end) {
    const std::vector<size_t> taken = taken_at(changes);
    std::vector<MemoryBar> bars;
    std::map<size_t, size_t> bar_of;  // by change
    for (size_t i = 0; i < changes.size(); ++i) {
        const MemoryChange& c = changes[i];
        if (c.where != side || taken[i] == kOlder) continue;
        if (taken[i] < i) {
            bars[bar_of.at(taken[i])].end = c.time;
            continue;
        }
        bar_of[i] = bars.size();
        bars.push_back({c.name, c.kind, c.bytes, 0, c.time, end});
    }
    std::erase_if(bars, [&](const MemoryBar& b) { return b.end <= begin || b.begin >= end; });
    for (MemoryBar& b : bars) b.begin = std::max(b.begin, begin), b.end = std::min(b.end, end);
    return bars;
}

// First fit, as an allocator that wastes nothing where it can: the lowest place that is free as long as the bar lives.
int64_t place_bars(std::vector<MemoryBar>& bars) {
    int64_t height = 0;
    std::vector<const MemoryBar*> placed;  // by place
    for (MemoryBar& b : bars) {
        std::erase_if(placed, [&](const MemoryBar* p) { return p->end <= b.begin; });
        int64_t at = 0;
        auto before = placed.begin();
        for (; before != placed.end() && (*before)->at < at + b.bytes; ++before) at = (*before)->at + (*before)->bytes;
        b.at = at;
        placed.insert(before, &b);
        height = std::max(height, at + b.bytes);
    }
    return height;
}

}  // namespace

std::string memory_svg(const std::string& title, const Changes& changes, DeviceKind side, int64_t peak,
                       const StepTimes& steps) {
    const double begin = !steps.empty()    ? steps.front().second
                         : changes.empty() ? 0
                                           : changes.front().time,
                 end = std::max(begin + 1e-3, !steps.empty()    ? steps.back().second
                                              : changes.empty() ? 1
                                                                : changes.back().time);
    std::vector<MemoryBar> bars = bars_of(changes, side, begin, end);
    const int64_t height = std::max<int64_t>(1, place_bars(bars));
    const double seconds = end - begin, wide = kMapWidth - kMapLeft - kMapRight,
                 high = kMapHeight - kMapTop - kMapBottom;
    const auto x = [&](double time) { return kMapLeft + wide * (time - begin) / seconds; };
    const auto y = [&](double bytes) { return kMapHeight - kMapBottom - high * bytes / double(height); };
    std::string out = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
        "font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title>%s</title>\n<style>text{fill:#75797f}"
        "</style>\n",
        kMapWidth, kMapHeight, kMapWidth, kMapHeight, escape_html(title).c_str());
    out += format("<text x=\"%g\" y=\"24\" font-size=\"16\" font-weight=\"600\">%s</text>\n", kMapLeft,
                  escape_html(title).c_str());
    out += text_svg(kMapWidth - kMapRight, 24, "end", 12, "peak memory " + human_bytes(peak) + ", of the whole run");
    for (const double tick : round_ticks(0, seconds, 8))
        if (tick <= seconds)
            out += text_svg(x(begin + tick), kMapHeight - kMapBottom + 18, "middle", 12, format("%g s", tick));
    const double unit = std::pow(1024.0, std::floor(std::log2(double(height)) / 10));
    for (const double tick : round_ticks(0, double(height) / unit, 6)) {
        if (tick * unit > double(height)) continue;
        out += text_svg(kMapLeft - 6, y(tick * unit) + 4, "end", 12, human_bytes(int64_t(tick * unit)));
        out += format("<path d=\"M%g %.1fh%g\" stroke=\"#85898f\" stroke-opacity=\".25\"/>\n", kMapLeft, y(tick * unit),
                      wide);
    }
    std::array<bool, kMemKinds> seen{};
    for (const MemoryBar& b : bars) {
        seen[size_t(b.kind)] = true;
        out += format(
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" stroke=\"#fff\" "
            "stroke-width=\".3\"><title>%s: %s of %s, from %.3f s to %s</title></rect>\n",
            x(b.begin), y(double(b.at + b.bytes)), std::max(0.5, x(b.end) - x(b.begin)),
            high * double(b.bytes) / double(height), kKindColours[size_t(b.kind)], escape_html(b.name).c_str(),
            human_bytes(b.bytes).c_str(), name_of(b.kind), b.begin - begin,
            b.end < end ? format("%.3f s", b.end - begin).c_str() : "the end");
    }
    for (const auto& [name, time] : steps) {
        out += text_svg(x(time) + 3, kMapTop - 4, "start", 12, name);
        out += format("<path d=\"M%.1f %gV%g\" stroke=\"#000\" stroke-dasharray=\"4 3\"/>\n", x(time), kMapTop,
                      kMapHeight - kMapBottom);
    }
    double at = kMapLeft;
    for (size_t k = 0; k < kMemKinds; ++k) {
        if (!seen[k]) continue;
        out += format("<rect x=\"%.1f\" y=\"40\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", at, kKindColours[k]);
        out += text_svg(at + 17, 51, "start", 12, name_of(MemKind(k)));
        at += 42 + 6.4 * double(std::string(name_of(MemKind(k))).size());
    }
    return out + "</svg>\n";
}

std::string memory_events(const Changes& changes, double origin, int rank, int row) {
    const std::vector<size_t> taken = taken_at(changes);
    std::string out;
    std::map<DeviceKind, std::array<int64_t, kMemKinds>> now;
    const auto count = [&](DeviceKind where, double at) {
        out += format(",\n{\"ph\":\"C\",\"name\":\"memory, %s\",\"pid\":%d,\"ts\":%.3f,\"args\":{",
                      where == DeviceKind::cuda ? "GPU" : "host", rank, at);
        for (size_t k = 0; k < kMemKinds; ++k)
            out += format("%s\"%s\":%ld", k ? "," : "", name_of(MemKind(k)), now[where][k]);
        out += "}}";
    };
    out += format(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"memory\"}}",
                  rank, row);
    bool began = false;
    const auto begin = [&] {  // what there is when the trace begins
        for (const auto& [where, bytes] : now) count(where, 0);
        began = true;
    };
    for (size_t i = 0; i < changes.size(); ++i) {
        const MemoryChange& c = changes[i];
        if (taken[i] == kOlder) continue;
        if (!began && c.time >= origin) begin();
        now[c.where][size_t(c.kind)] += c.bytes;
        if (!began) continue;
        const double at = 1e6 * (c.time - origin);
        count(c.where, at);
        out += format(",\n{\"ph\":\"i\",\"s\":\"t\",\"name\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
                      Json((c.bytes > 0 ? "+ " : "- ") + human_bytes(std::abs(c.bytes)) + " " + c.name).dump().c_str(),
                      rank, row, at);
    }
    if (!began) begin();
    return out;
}

}  // namespace rz
