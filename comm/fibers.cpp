#include "comm/fibers.h"

#include <sched.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/runtime/check.h"
#if defined(__x86_64__)
#define RZ_SWITCH_BY_HAND  // swapcontext makes a system call for the signal mask and takes ten times as long
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace rz {

enum class State { ready, running, parked, done };

struct Fibers::Fiber {
    State state = State::ready;
    char* base = nullptr;  // of its stack
    size_t size = 0;
    void* sp = nullptr;
    void* asan_fake = nullptr;
#ifndef RZ_SWITCH_BY_HAND
    ucontext_t context;
#endif
};

static thread_local Fibers* active = nullptr;

void fiber_entry(Fibers* all) { Fibers::enter(all); }

#ifdef RZ_SWITCH_BY_HAND
extern "C" void rz_fiber_switch(void** save, void* load);
extern "C" void rz_fiber_start();
extern "C" [[noreturn]] void rz_fiber_entry(void* all) {
    fiber_entry(static_cast<Fibers*>(all));
    __builtin_unreachable();
}
// The callee's registers and the stack pointer. A new fiber begins in rz_fiber_start, where unwinding ends.
asm(R"(
.text
.p2align 4
.globl rz_fiber_switch
.type rz_fiber_switch,@function
rz_fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size rz_fiber_switch, .-rz_fiber_switch
.globl rz_fiber_start
.type rz_fiber_start,@function
rz_fiber_start:
    .cfi_startproc
    .cfi_undefined rip
    movq %r12, %rdi
    xorl %ebp, %ebp
    call rz_fiber_entry
    ud2
    .cfi_endproc
.size rz_fiber_start, .-rz_fiber_start
)");
#endif

Fibers::Fibers(int count, size_t stack_bytes) : main_(std::make_unique<Fiber>()) {
    constexpr size_t kPage = 4096;
    const size_t stack = (stack_bytes + kPage - 1) / kPage * kPage;
    pitch_ = stack + kPage;  // a page below each stack that can't be touched
    mapped_ = pitch_ * size_t(count);
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory != MAP_FAILED, "%d fibers: no addresses for stacks of %zu bytes", count, stack);
    stacks_ = static_cast<char*>(memory);
    for (int i = 0; i < count; ++i) {
        char* base = stacks_ + size_t(i) * pitch_;
        mprotect(base, kPage, PROT_NONE);
        auto fiber = std::make_unique<Fiber>();
        fiber->base = base + kPage;
        fiber->size = stack - size_t(i % 16) * 256;  // or all tops would share a few sets of the cache
        fibers_.push_back(std::move(fiber));
    }
}

Fibers::~Fibers() { munmap(stacks_, mapped_); }

Fibers* Fibers::current() { return active; }

static void switch_to(auto& from, auto& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from.state == State::done ? nullptr : &from.asan_fake, to.base, to.size);
#endif
#ifdef RZ_SWITCH_BY_HAND
    rz_fiber_switch(&from.sp, to.sp);
#else
    swapcontext(&from.context, &to.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.asan_fake, nullptr, nullptr);
#endif
}

void Fibers::enter(Fibers* all) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    try {
        all->body_(all->self_);
    } catch (const std::exception& error) {
        all->fail(std::current_exception(), error.what());
    } catch (...) {
        all->fail(std::current_exception(), "an error without a text");
    }
    all->fibers_[size_t(all->self_)]->state = State::done;
    --all->running_;
    all->leave();
}

void Fibers::resume(int i) {
    self_ = i;
    fibers_[size_t(i)]->state = State::running;
    active = this;
    switch_to(*main_, *fibers_[size_t(i)]);
    active = nullptr;
    self_ = -1;
}

void Fibers::leave() { switch_to(*fibers_[size_t(self_)], *main_); }

void Fibers::run(const std::function<void(int)>& body, const std::function<std::string()>& idle) {
    require(!active, "fibers inside a fiber");
    body_ = body;
    error_ = nullptr;
    why_.clear();
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* base = nullptr;
    pthread_attr_getstack(&attributes, &base, &main_->size);
    main_->base = static_cast<char*>(base);
    pthread_attr_destroy(&attributes);
#endif
    ready_.clear();
    for (int i = 0; i < count(); ++i) {
        Fiber& f = *fibers_[size_t(i)];
#ifdef RZ_SWITCH_BY_HAND
        // The switch pops r15 r14 r13 r12 rbx rbp and where to return to; the stack is then aligned.
        void** top = reinterpret_cast<void**>(f.base + f.size) - 9;
        void* frame[9] = {nullptr, nullptr, nullptr, this, nullptr, nullptr, reinterpret_cast<void*>(&rz_fiber_start),
                          nullptr, nullptr};
        std::memcpy(top, frame, sizeof frame);
        f.sp = top;
#else
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.base;
        f.context.uc_stack.ss_size = f.size;
        f.context.uc_link = nullptr;
        const uint64_t self = uint64_t(reinterpret_cast<uintptr_t>(this));
        makecontext(&f.context, reinterpret_cast<void (*)()>(+[](unsigned low, unsigned high) {
            fiber_entry(reinterpret_cast<Fibers*>(uintptr_t(uint64_t(high) << 32 | low)));
        }),
                    2, unsigned(self), unsigned(self >> 32));
#endif
        f.state = State::ready;
        ready_.push_back(i);
    }
    for (running_ = count(); running_ > 0;) {
        if (ready_.empty()) {
            const std::string why = idle();
            if (!why.empty()) fail(std::make_exception_ptr(Error(why)), why);
            continue;
        }
        const int next = ready_.front();
        ready_.pop_front();
        resume(next);
    }
    body_ = nullptr;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fibers::park() {
    if (why_.empty()) {
        fibers_[size_t(self_)]->state = State::parked;
        leave();
    }
    if (!why_.empty()) throw Error("stopped, for another failed: " + why_);
}

void Fibers::wake(int i) {
    Fiber& f = *fibers_[size_t(i)];
    if (f.state != State::parked) return;
    f.state = State::ready;
    ready_.push_back(i);
}

void Fibers::yield() {
    fibers_[size_t(self_)]->state = State::ready;
    ready_.push_back(self_);
    leave();
    if (!why_.empty()) throw Error("stopped, for another failed: " + why_);
}

void Fibers::wait_a_little(int milliseconds) {
    if (active) return active->yield();
    if (milliseconds == 0)
        sched_yield();
    else
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

void Fibers::fail(std::exception_ptr error, const std::string& why) {
    if (!why_.empty()) return;
    error_ = std::move(error);
    why_ = why.empty() ? "an error without a text" : why;
    for (int i = 0; i < count(); ++i) wake(i);
}

}  // namespace rz
