#include "comm/crash.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "comm/mpi_transport.h"
#include "comm/process.h"

namespace rz {

// An allocation that fails where nothing may be thrown: in a destructor (JSON's makes a list), or in a thread.
static void end_in_words() {
    const std::exception_ptr error = std::current_exception();
    if (!error) std::abort();
    try {
        std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
        std::fputs("train_llama: out of memory where nothing can be undone: raise the memory limit\n", stderr);
    } catch (const std::exception& other) {
        std::fprintf(stderr, "train_llama: %s\n", other.what());
    }
    mpi_end_before_start();
    std::_Exit(kExitError);
}

// A constructor's exception does not reach main(), and CUDA's runtime, which registers kernels in one,
// does not look at what malloc gave. From the loader to main() a crash ends with words. From then on what
// calls abort() does: the C library (a thread's destructors) and JSON (an object without its map) without memory.
static struct sigaction segv_action;
template <size_t N>
[[noreturn]] static void end_with(const char (&text)[N]) {
    if (write(STDERR_FILENO, text, N - 1) > 0) mpi_end_before_start();
    _exit(kExitError);
}
static void crashed_before_main(int) {
    end_with("train_llama: crashed before main(), most often for lack of memory: raise the memory limit\n");
}
static void aborted(int) {
    end_with("train_llama: aborted; the line above says why, most often for lack of memory: raise the memory limit\n");
}
static void on_signal(int signal, void (*handler)(int), struct sigaction* before) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(signal, &action, before);
}
static void before_main() {
    on_signal(SIGSEGV, crashed_before_main, &segv_action);
    on_signal(SIGABRT, crashed_before_main, nullptr);
}
// The loader calls it before the constructors of libraries, too, where UCX's asks for memory.
__attribute__((section(".preinit_array"), used)) static void (*const before_all)() = before_main;

// A file that is opened under the number of a closed standard output would take what is printed: the lock's, a log's.
static void open_standard_streams() {
    for (int fd = 0; fd < 3; ++fd)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
}

int code_of_failed_start() {
    ExitCode code = kExitError;
    try {
        throw;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train_llama: out of memory before anything began: raise the memory limit\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_llama: %s\n", error.what());
        code = exit_code_of(error);
    }
    if (code == kExitError) mpi_end_before_start();  // else the other ranks find it too
    return code;
}

void crashes_end_in_words() {
    open_standard_streams();
    sigaction(SIGSEGV, &segv_action, nullptr);
    on_signal(SIGABRT, aborted, nullptr);
    std::set_terminate(end_in_words);
}

}  // namespace rz
