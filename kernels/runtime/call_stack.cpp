#include "kernels/runtime/call_stack.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "kernels/runtime/check.h"
#if defined(__x86_64__)
#define RZ_SWITCH_BY_HAND  // swapcontext makes a system call for the signal mask and takes ten times as long
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace rz {

#ifdef RZ_SWITCH_BY_HAND
extern "C" void rz_stack_switch(void** save, void* load);
extern "C" void rz_stack_start();
// The callee's registers and the stack pointer. A new stack begins in rz_stack_start, where unwinding ends.
asm(R"(
.text
.p2align 4
.globl rz_stack_switch
.type rz_stack_switch,@function
rz_stack_switch:
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
.size rz_stack_switch, .-rz_stack_switch
.globl rz_stack_start
.type rz_stack_start,@function
rz_stack_start:
    .cfi_startproc
    .cfi_undefined rip
    movq %r12, %rdi
    movq %r13, %rsi
    xorl %ebp, %ebp
    call rz_stack_entry
    ud2
    .cfi_endproc
.size rz_stack_start, .-rz_stack_start
)");
#endif

extern "C" __attribute__((no_sanitize("address"))) void rz_stack_entry(void (*entry)(void*), void* argument) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    entry(argument);
    __builtin_unreachable();
}

CallStacks::CallStacks(int count, size_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t stack = (bytes + kPage - 1) / kPage * kPage, pitch = stack + kPage;
    mapped_ = pitch * size_t(count);
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(memory != MAP_FAILED, "no addresses for %d stacks of %zu bytes", count, stack);
    memory_ = static_cast<char*>(memory);
    stacks_.resize(size_t(count));
    for (size_t i = 0; i < stacks_.size(); ++i) {
        mprotect(memory_ + i * pitch, kPage, PROT_NONE);
        stacks_[i].base = memory_ + i * pitch + kPage;
        stacks_[i].size = stack - i % 32 * 128;  // or all tops would share a few sets of the cache
    }
}

CallStacks::~CallStacks() { munmap(memory_, mapped_); }

void begin_stack(CallStack& stack, void (*entry)(void*), void* argument) {
    stack.asan_fake = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.base, stack.size);
#endif
#ifdef RZ_SWITCH_BY_HAND
    // The switch pops r15 r14 r13 r12 rbx rbp and where to return to; the stack is then aligned.
    void** top = reinterpret_cast<void**>(stack.base + stack.size) - 9;
    void* frame[9] = {nullptr,
                      nullptr,
                      argument,
                      reinterpret_cast<void*>(entry),
                      nullptr,
                      nullptr,
                      reinterpret_cast<void*>(&rz_stack_start),
                      nullptr,
                      nullptr};
    std::memcpy(top, frame, sizeof frame);
    stack.sp = top;
#else
    auto context = std::make_shared<ucontext_t>();
    stack.context = context;
    getcontext(context.get());
    context->uc_stack.ss_sp = stack.base;
    context->uc_stack.ss_size = stack.size;
    context->uc_link = nullptr;
    // makecontext passes ints: where the two pointers lie goes in two of them.
    struct Start {
        void (*entry)(void*);
        void* argument;
    };
    Start* start = reinterpret_cast<Start*>(stack.base);
    *start = {entry, argument};
    const uint64_t at = uint64_t(reinterpret_cast<uintptr_t>(start));
    makecontext(context.get(), reinterpret_cast<void (*)()>(+[](unsigned low, unsigned high) {
                    const Start* start = reinterpret_cast<const Start*>(uintptr_t(uint64_t(high) << 32 | low));
                    rz_stack_entry(start->entry, start->argument);
                }),
                2, unsigned(at), unsigned(at >> 32));
#endif
}

void use_thread_stack([[maybe_unused]] CallStack& stack) {
#if defined(__SANITIZE_ADDRESS__)
    static thread_local void* base = nullptr;
    static thread_local size_t size = 0;
    if (!base) {
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &base, &size);
        pthread_attr_destroy(&attributes);
    }
    stack.base = static_cast<char*>(base), stack.size = size;
#endif
#ifndef RZ_SWITCH_BY_HAND
    if (!stack.context) stack.context = std::make_shared<ucontext_t>();
#endif
}

__attribute__((no_sanitize("address"))) void switch_stack(CallStack& from, CallStack& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &from.asan_fake, to.base, to.size);
#endif
#ifdef RZ_SWITCH_BY_HAND
    rz_stack_switch(&from.sp, to.sp);
#else
    swapcontext(static_cast<ucontext_t*>(from.context.get()), static_cast<ucontext_t*>(to.context.get()));
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.asan_fake, nullptr, nullptr);
#endif
}

}  // namespace rz
