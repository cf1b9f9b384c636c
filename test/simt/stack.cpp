// Fiber stacks and the switch between them.
#include <cstdlib>

#include <pthread.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#define SIMT_UCONTEXT
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "test/simt/runtime.h"

namespace simt {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr int kChunk = 64;  // stacks per mapping

// Never destroyed: LeakSanitizer looks after static destructors have run.
auto& all_stacks = *new std::vector<Stack*>;
auto& free_stacks = *new std::vector<Stack*>;
Stack main_context;

}  // namespace

#if !defined(SIMT_UCONTEXT)
// glibc's swapcontext makes a system call for the signal mask and takes ten times as long.
extern "C" void simt_switch(void** save, void* load);
extern "C" void simt_start();
extern "C" void simt_entry(Stack* s);
asm(R"(
.text
.p2align 4
.globl simt_switch
.type simt_switch,@function
simt_switch:
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
.size simt_switch, .-simt_switch
.globl simt_start
.type simt_start,@function
simt_start:
    .cfi_startproc
    .cfi_undefined rip
    movq %r12, %rdi
    xorl %ebp, %ebp
    call simt_entry
    ud2
    .cfi_endproc
.size simt_start, .-simt_start
)");
#endif

extern "C" __attribute__((no_sanitize("address"))) void simt_entry(Stack* s) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    fiber_main(s);
}

namespace {

#if defined(SIMT_UCONTEXT)
void ucontext_entry(unsigned lo, unsigned hi) { simt_entry((Stack*)(uint64_t(hi) << 32 | lo)); }
#endif

void prepare(Stack* s) {
    s->asan_fake = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(s->base, s->size);
#endif
#if defined(SIMT_UCONTEXT)
    auto* uc = s->context ? (ucontext_t*)s->context : new ucontext_t;
    s->context = uc;
    getcontext(uc);
    uc->uc_stack.ss_sp = s->base;
    uc->uc_stack.ss_size = s->size;
    uc->uc_link = nullptr;
    makecontext(uc, (void (*)())ucontext_entry, 2, unsigned(uint64_t(s)), unsigned(uint64_t(s) >> 32));
#else
    // simt_switch pops r15 r14 r13 r12 rbx rbp, then the return address; rsp is then 16-byte aligned.
    void** top = (void**)(s->base + s->size) - 9;
    void* frame[9] = {nullptr, nullptr, nullptr, s, nullptr, nullptr, (void*)simt_start, nullptr, nullptr};
    memcpy(top, frame, sizeof frame);
    s->sp = top;
#endif
}

void map_more_stacks() {
    constexpr size_t page = 4096, pitch = kStackBytes + page;
    char* m = (char*)mmap(nullptr, kChunk * pitch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1, 0);
    if (m == MAP_FAILED) fprintf(stderr, "simt: no memory for stacks\n"), abort();
    for (size_t i = 0; i < kChunk; i++) {
        mprotect(m + i * pitch, page, PROT_NONE);
        auto* s = new Stack;
        s->base = m + i * pitch + page;
        s->size = kStackBytes - i % 32 * 128;  // staggered, or 1024 stack tops would share a few cache sets
        prepare(s);
        all_stacks.push_back(s);
        free_stacks.push_back(s);
    }
}

}  // namespace

Stack* take_stack() {
    if (free_stacks.empty()) map_more_stacks();
    Stack* s = free_stacks.back();
    free_stacks.pop_back();
    return s;
}
void return_stack(Stack* s) { free_stacks.push_back(s); }
void rebuild_stacks() {
    for (Stack* s : all_stacks) prepare(s);
    free_stacks = all_stacks;
}
// The stack of the thread that calls, which is the one that launches.
Stack* main_stack() {
#if defined(__SANITIZE_ADDRESS__)
    static thread_local void* base;
    static thread_local size_t size;
    if (!base) {
        pthread_attr_t attr;
        pthread_getattr_np(pthread_self(), &attr);
        pthread_attr_getstack(&attr, &base, &size);
        pthread_attr_destroy(&attr);
    }
    main_context.base = (char*)base, main_context.size = size;
#endif
#if defined(SIMT_UCONTEXT)
    if (!main_context.context) main_context.context = new ucontext_t;
#endif
    return &main_context;
}

__attribute__((no_sanitize("address"))) void switch_stack(Stack* from, Stack* to) {
    stats().switches++;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->asan_fake, to->base, to->size);
#endif
#if defined(SIMT_UCONTEXT)
    swapcontext((ucontext_t*)from->context, (ucontext_t*)to->context);
#else
    simt_switch(&from->sp, to->sp);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->asan_fake, nullptr, nullptr);
#endif
}

}  // namespace simt
