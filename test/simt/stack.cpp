// The stacks of the emulator's threads.
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

void prepare(Stack* s) {
    rz::begin_stack(
        *s, [](void* stack) { fiber_main(static_cast<Stack*>(stack)); }, s);
}

void map_more_stacks() {
    auto& chunk = *new rz::CallStacks(kChunk, kStackBytes);
    for (int i = 0; i < kChunk; i++) {
        prepare(&chunk[i]);
        all_stacks.push_back(&chunk[i]);
        free_stacks.push_back(&chunk[i]);
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
Stack* main_stack() {
    static Stack stack;
    rz::use_thread_stack(stack);
    return &stack;
}
void switch_stack(Stack* from, Stack* to) {
    stats().switches++;
    rz::switch_stack(*from, *to);
}

}  // namespace simt
