// GoogleTest under mpirun: every rank runs every test. Rank 0 alone reports what passes; a rank that sees a failure
// prints it, and then all ranks end with code 1. Every wait has a deadline, so a test that hangs ends with code 71.

#include "test/comm/mpi_main.h"

#include <cstdio>
#include <cstdlib>

namespace rz {

static Process* process = nullptr;
Process& test_process() { return *process; }

namespace {

// Prints failures only, with the rank.
class FailuresOnly : public testing::EmptyTestEventListener {
    void OnTestStart(const testing::TestInfo& test) override {
        name_ = std::string(test.test_suite_name()) + "." + test.name();
    }
    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (!result.failed()) return;
        std::fprintf(stderr, "rank %d: %s: %s:%d\n%s\n", process->rank(), name_.c_str(),
                     result.file_name() ? result.file_name() : "?", result.line_number(), result.summary());
    }
    std::string name_;
};

// Ranks stay together between tests: a failed assertion on one of them must not leave the others a collective ahead.
class Together : public testing::EmptyTestEventListener {
    void OnTestEnd(const testing::TestInfo&) override { process->barrier(); }
};

}  // namespace

}  // namespace rz

#ifdef __SANITIZE_THREAD__
// MPICH and UCX are not instrumented; only our own code is looked at. UCX patches malloc and mmap when it is loaded,
// which the sanitizer does too, so start it with   mpirun -genv UCX_MEM_EVENTS n -genv UCX_ERROR_SIGNALS "" -n 3 ...
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
#endif

int main(int argc, char** argv) {
    setenv("OMP_NUM_THREADS", "1", 0);
    testing::InitGoogleTest(&argc, argv);
    const char* timeout = std::getenv("RZ_TEST_TIMEOUT");
    rz::Process process({.timeout_s = timeout ? std::atof(timeout) : 30});
    rz::process = &process;
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    if (!process.is_root()) {
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new rz::FailuresOnly);
    }
    listeners.Append(new rz::Together);
    return process.run([&] {
        const int failed = RUN_ALL_TESTS();
        return int(process.max(failed));
    });
}
