#include "kernels/runtime/op_timer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <utility>

namespace rz {

std::map<std::string, OpTimer::Total> OpTimer::take() {
    std::map<std::string, Total> totals;
    for (const Span& span : spans_) {
        span.stop.synchronize();
        Total& total = totals[span.name];
        ++total.calls;
        total.seconds += span.stop.seconds_since(span.start);
    }
    spans_.clear();
    return totals;
}

std::vector<OpTimer::Span> OpTimer::take_spans() {
    for (const Span& span : spans_) span.stop.synchronize();
    return std::exchange(spans_, {});
}

std::string OpTimer::name_of(const std::type_info& type) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                      std::free);
    const std::string name = status == 0 ? text.get() : type.name();
    return name.substr(name.rfind(':') + 1);  // npos + 1 is 0
}

}  // namespace rz
