#pragma once
// Time of a step by op: while a stream has a timer, each op, copy and fill enqueued on it lies between two timing
// events, and its time is added up under the op's name. The events keep ops from running into each other, so a step
// takes somewhat longer than without: time the whole without it. Not for a stream that is being captured into a graph.

#include <map>
#include <string>
#include <typeinfo>
#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

class OpTimer {
   public:
    struct Total {
        int64_t calls = 0;
        double seconds = 0;
    };

    void add(std::string name, Event start, Event stop) {
        spans_.push_back({std::move(name), std::move(start), std::move(stop)});
    }
    // By name, of everything added since the last call; waits for it.
    std::map<std::string, Total> take();

    struct Span {
        std::string name;
        Event start, stop;
    };
    // The same, one by one, in the order in which they were enqueued.
    std::vector<Span> take_spans();

    // "RmsnormForward" for rz::RmsnormForward
    static std::string name_of(const std::type_info&);

   private:
    std::vector<Span> spans_;
};

}  // namespace rz
