// Linked into the kernel tests: each must have launched the kernels that it is there for. Else a wrong attribute, or a
// path that is silently not taken, would test another kernel twice.
//   PTX_TESTS=file   a line per test: milliseconds, its name, the kernels that it launched
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>

#include "test/ptx/cudart.h"

namespace ptx {
namespace {

struct Rule {
    const char* test;   // regular expressions: of suite.name
    const char* shape;  // of the parameter, if it has one
    int from_arch, to_arch;
    const char* kernels;  // each must have run
    const char* never;    // and none with this in its name
};

constexpr int kAny = 1000;
#define TENSOR_CORE ".*_D(64|80|96|128)_(bf16|f16|fp16).*"
#define TENSOR_CORE_FP16 ".*_D(64|80|96|128)_(f16|fp16).*"
#define FORWARD ".*/Attention.ForwardMatchesCpu"
#define BACKWARD ".*/Attention.BackwardMatchesCpu"
#define BACKWARD_MMA "attention_delta_kernel< attention_backward_kv_mma_kernel< attention_backward_q_mma_kernel<"

const Rule kRules[] = {
    {FORWARD, TENSOR_CORE_FP16, 75, 75, "attention_forward_mma_kernel<", "wgmma"},
    {BACKWARD, TENSOR_CORE_FP16, 75, 75, BACKWARD_MMA, "wgmma"},
    {".*/Attention.(Forward|Backward)MatchesCpu", ".*_bf16.*", 75, 75, "", "mma_kernel"},
    {FORWARD, TENSOR_CORE, 90, 90, "attention_forward_wgmma_kernel<", "attention_forward_mma"},
    {FORWARD, TENSOR_CORE, 80, 89, "attention_forward_mma_kernel<", "wgmma"},
    {".*/Attention.ForwardWithoutWgmmaMatchesCpu", TENSOR_CORE, 80, kAny, "attention_forward_mma_kernel<", "wgmma"},
    {FORWARD, ".*_f32.*", 0, kAny, "attention_forward_kernel<float", "mma"},
    {BACKWARD, ".*_D(64|80|96)_(bf16|f16|fp16).*", 90, 90,
     "attention_delta_kernel< attention_backward_kv_wgmma_kernel< attention_backward_q_wgmma_kernel<", "q_mma_kernel"},
    {BACKWARD, ".*_D128_(bf16|f16|fp16).*", 90, 90,
     "attention_delta_kernel< attention_backward_kv_wgmma_kernel< attention_backward_dq_wgmma_kernel<", "_q_"},
    {".*/Attention.KeptScoresLeaveTheBits", ".*", 90, 90,
     "attention_backward_kv_wgmma_kernel< attention_backward_q_wgmma_kernel< attention_backward_dq_wgmma_kernel<",
     "q_mma_kernel"},
    {BACKWARD, TENSOR_CORE, 80, 89, BACKWARD_MMA, "wgmma"},
    {".*/Attention.BackwardWithoutWgmmaMatchesCpu", TENSOR_CORE, 80, kAny, BACKWARD_MMA, "wgmma"},
    {BACKWARD, ".*_f32.*", 0, kAny,
     "attention_delta_kernel<float attention_backward_kv_kernel<float attention_backward_q_kernel<float", "mma"},
};

class Listener : public testing::EmptyTestEventListener {
    void OnTestStart(const testing::TestInfo&) override { take_launched(); }
    void OnTestEnd(const testing::TestInfo& info) override {
        const std::vector<std::string> launched = take_launched();
        record(info, launched);
        if (info.result()->Skipped() || info.result()->Failed()) return;
        const std::string test = std::string(info.test_suite_name()) + "." + without_index(info.name());
        const std::string shape = info.value_param() ? info.value_param() : "";
        const int arch = getenv("PTX_BUILT_FOR") ? atoi(getenv("PTX_BUILT_FOR")) : device_arch();
        for (const Rule& r : kRules)
            if (arch >= r.from_arch && arch <= r.to_arch && std::regex_match(test, std::regex(r.test)) &&
                std::regex_match(shape, std::regex(r.shape)))
                check(r, launched, test + " " + shape);
    }
    static std::string without_index(const std::string& s) { return s.substr(0, s.find('/')); }
    static void check(const Rule& r, const std::vector<std::string>& launched, const std::string& test) {
        const auto any = [&](const std::string& part) {
            return std::any_of(launched.begin(), launched.end(),
                               [&](const std::string& s) { return s.find(part) != std::string::npos; });
        };
        std::istringstream kernels(r.kernels);
        for (std::string k; kernels >> k;)
            if (!any(k)) ADD_FAILURE() << test << " has passed without launching " << k;
        if (any(r.never)) ADD_FAILURE() << test << " has launched a kernel called " << r.never;
    }
    static void record(const testing::TestInfo& info, const std::vector<std::string>& launched) {
        static FILE* const out = getenv("PTX_TESTS") ? fopen(getenv("PTX_TESTS"), "a") : nullptr;
        if (!out || launched.empty()) return;
        fprintf(out, "%lld\t%s.%s", (long long)info.result()->elapsed_time(), info.test_suite_name(), info.name());
        for (const std::string& k : std::set<std::string>(launched.begin(), launched.end()))
            fprintf(out, "\t%s", k.c_str());
        fprintf(out, "\n"), fflush(out);
    }
};

const bool installed = [] {
    testing::UnitTest::GetInstance()->listeners().Append(new Listener);
    return true;
}();

}  // namespace
}  // namespace ptx
