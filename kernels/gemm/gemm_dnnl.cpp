#include "kernels/gemm/gemm_dnnl.h"

#ifndef RZ_HAVE_DNNL

namespace rz {
bool gemm_dnnl(const Gemm&) { return false; }
const char* gemm_dnnl_version() { return nullptr; }
}  // namespace rz

#else

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/copy_rows.h"
#include "kernels/scratch.h"

namespace rz {

namespace {

// Everything that a primitive depends on.
using Key = std::array<int64_t, 13>;

Key key_of(const Gemm& g) {
    return {g.M,
            g.N,
            g.K,
            g.trans_a,
            g.trans_b,
            std::bit_cast<int32_t>(g.alpha),
            std::bit_cast<int32_t>(g.beta),
            g.lda,
            g.ldb,
            g.ldc,
            int64_t(g.dtype),
            int64_t(g.c_dtype),
            g.bias != nullptr};
}

struct Plan {
    dnnl::matmul matmul;                        // empty: oneDNN has nothing fast for this product
    dnnl::memory::desc a, b, c, bias, scratch;  // bias: empty without one
};

dnnl::engine& engine() {
    static auto* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // never destroyed: threads may outlive statics
    return *e;
}

dnnl::memory::data_type type_of(DType t) {
    switch (t) {
#define RZ_ROW(type, cpp, name, safetensors, config_json, nccl, mpi, one_dnn, cublas) \
    case DType::type:                                                                 \
        return dnnl::memory::data_type::one_dnn;
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
}

// oneDNN 3 changed how both are said. c = alpha a b + beta c; alpha would multiply a bias too.
dnnl::primitive_attr attributes(const Gemm& g) {
    dnnl::primitive_attr attr;
    dnnl::post_ops ops;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
    if (g.alpha != 1) ops.append_eltwise(dnnl::algorithm::eltwise_linear, g.alpha, 0.0f);
#else
    if (g.alpha != 1) attr.set_output_scales(0, {g.alpha});
#endif
    if (g.beta != 0) ops.append_sum(g.beta);
    attr.set_post_ops(ops);
    return attr;
}

dnnl::matmul::primitive_desc describe(const Plan& plan, const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
    return {engine(), plan.a, plan.b, plan.bias, plan.c, attr};
#else
    return {dnnl::matmul::desc(plan.a, plan.b, plan.bias, plan.c), attr, engine()};
#endif
}

// oneDNN (2.6.3 at least) writes its machine code through a null pointer where there is no memory for it.
bool has_room_for_code() {
    constexpr size_t kBytes = size_t(8) << 20;
    void* room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return false;
    munmap(room, kBytes);
    return true;
}

// oneDNN makes its objects in what its allocator gives, without looking: where an allocation of its own fails, it
// writes to a small offset from the null pointer. Nothing can be gone back to, so such a crash, of a thread that is
// inside oneDNN, ends the program with words and with the exit code of an error. No other crash is hidden: what a
// product reads and writes is never null (gemm_dnnl()), so an address in the first pages is none of ours, and with any
// other address, in any other thread, or sent by a process, the signal goes to whoever had it before, as if this were
// not here: by default a core dump.
//
// The handler calls write(), _exit(), sigaction() and raise() alone, which POSIX lists as async-signal-safe, and reads
// a thread_local of the program's own image, which is there from the thread's start. Under AddressSanitizer it is not
// installed: that report says more.
class WordsForACrash {
   public:
    WordsForACrash() {
        static const bool once = install();
        here_ = once;
    }
    ~WordsForACrash() { here_ = false; }
    WordsForACrash(const WordsForACrash&) = delete;
    WordsForACrash& operator=(const WordsForACrash&) = delete;

   private:
    static bool install() {
#ifdef __SANITIZE_ADDRESS__
        return false;
#else
        struct sigaction action = {};
        action.sa_sigaction = crashed;
        action.sa_flags = SA_SIGINFO;
        return sigaction(SIGSEGV, &action, &before_) == 0;
#endif
    }
    [[maybe_unused]] static void crashed(int number, siginfo_t* info, void*) {
        constexpr uintptr_t kNeverMapped = uintptr_t(64) << 10;  // Linux's mmap_min_addr
        const bool fault = info->si_code > 0;                    // of an instruction; not sent by a process
        if (here_ && fault && reinterpret_cast<uintptr_t>(info->si_addr) < kNeverMapped &&
            info->si_code == SEGV_MAPERR) {
            constexpr int kExitError = 70;  // comm/exit_codes.h
            constexpr char kText[] = "train_llama: gemm: oneDNN crashed: it got no memory for an object of its own\n";
            if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(kExitError);
            _exit(kExitError);
        }
        sigaction(number, &before_, nullptr);
        if (!fault) raise(number);  // it comes once this returns; an instruction is tried again, with the same fault
    }
    static inline constinit thread_local bool here_ = false;
    static inline struct sigaction before_ = {};
};

Plan make_plan(const Gemm& g) {
    require(has_room_for_code(), "gemm: out of memory before oneDNN plans a product (M=%ld N=%ld K=%ld)", g.M, g.N,
            g.K);
    Plan plan;
    plan.a = {{g.M, g.K}, type_of(g.dtype), g.trans_a ? dnnl::memory::dims{1, g.lda} : dnnl::memory::dims{g.lda, 1}};
    plan.b = {{g.K, g.N}, type_of(g.dtype), g.trans_b ? dnnl::memory::dims{1, g.ldb} : dnnl::memory::dims{g.ldb, 1}};
    plan.c = {{g.M, g.N}, type_of(g.c_dtype), dnnl::memory::dims{g.ldc, 1}};
    if (g.bias) plan.bias = {{1, g.N}, type_of(g.c_dtype), dnnl::memory::dims{g.N, 1}};
    try {
        const dnnl::matmul::primitive_desc pd = describe(plan, attributes(g));
        if (std::string(pd.impl_info_str()).find("ref") != std::string::npos) return plan;
        plan.scratch = pd.scratchpad_desc();
        plan.matmul = dnnl::matmul(pd);
    } catch (const dnnl::error& error) {
        // Only what oneDNN does not offer is left to our own loops, which round otherwise.
        require(error.status != dnnl_out_of_memory,
                "gemm: oneDNN: out of memory while it plans a product (M=%ld N=%ld K=%ld)", g.M, g.N, g.K);
        plan.matmul = {};
    }
    return plan;
}

// This thread's plan. Making one compiles code (about a millisecond), so a step must not. Beyond so many shapes all are
// planned anew.
const Plan& plan_of(const Gemm& g) {
    constexpr size_t kMost = 512;
    thread_local std::map<Key, Plan> plans;
    const Key key = key_of(g);
    if (const auto known = plans.find(key); known != plans.end()) return known->second;
    if (plans.size() == kMost) plans.clear();
    return plans.emplace(key, make_plan(g)).first->second;
}

}  // namespace

bool gemm_dnnl(const Gemm& g) {
    if (g.dtype == DType::f16 || g.c_dtype == DType::f16) return false;
    if (g.N == 1 && g.ldc != 1) return false;               // oneDNN 3.7 writes between the rows of such a C
    if (g.M == 1 && g.trans_a && g.lda != 1) return false;  // and reads such an A as if lda were 1
    require(g.a && g.b && g.c, "gemm: a null pointer (M=%ld N=%ld K=%ld)", g.M, g.N, g.K);
    const WordsForACrash guard;
    const Plan& plan = plan_of(g);
    if (!plan.matmul) return false;
    if (g.add)  // what oneDNN adds is in C
        copy_rows_cpu({.out = g.c,
                       .x = g.add,
                       .rows = g.M,
                       .columns = g.N,
                       .out_stride = g.ldc,
                       .stride = g.ldc,
                       .out_dtype = g.c_dtype,
                       .dtype = g.c_dtype});
    try {
        thread_local dnnl::stream stream(engine());
        const dnnl::memory a(plan.a, engine(), const_cast<void*>(g.a)), b(plan.b, engine(), const_cast<void*>(g.b)),
            c(plan.c, engine(), g.c);
        const int64_t bytes = int64_t(plan.scratch.get_size());
        const dnnl::memory scratch(plan.scratch, engine(), bytes ? thread_scratch<0>(bytes) : nullptr);
        std::unordered_map<int, dnnl::memory> arguments = {
            {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratch}};
        if (g.bias) arguments[DNNL_ARG_BIAS] = {plan.bias, engine(), const_cast<void*>(g.bias)};
        plan.matmul.execute(stream, arguments);
        stream.wait();
    } catch (const dnnl::error& error) {
        fail("gemm: oneDNN: %s (M=%ld N=%ld K=%ld)", error.what(), g.M, g.N, g.K);
    }
    return true;
}

const char* gemm_dnnl_version() {
    static const std::string name = [] {
        const dnnl_version_t* v = dnnl_version();
        return format("oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    }();
    return name.c_str();
}

}  // namespace rz
#endif
