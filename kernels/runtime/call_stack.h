#pragma once
// Stacks beside the thread's own, and the switch between them: code that waits leaves its stack as it stands, and
// other code goes on. comm/fibers.h runs ranks on them, the emulator of GPUs its threads.

#include <cstddef>
#include <memory>
#include <vector>

namespace rz {

struct CallStack {
    char* base = nullptr;  // its lowest byte
    size_t size = 0;
    void* sp = nullptr;  // where it was left
    void* asan_fake = nullptr;
    std::shared_ptr<void> context;  // ucontext_t, where the switch is not written by hand
};

// `count` stacks of `bytes`, rounded up to pages, each above a page that can't be touched. Throws where no addresses
// are left.
class CallStacks {
   public:
    CallStacks(int count, size_t bytes);
    ~CallStacks();
    CallStacks(const CallStacks&) = delete;
    CallStacks& operator=(const CallStacks&) = delete;
    CallStack& operator[](int i) { return stacks_[size_t(i)]; }

   private:
    std::vector<CallStack> stacks_;
    char* memory_ = nullptr;
    size_t mapped_ = 0;
};

// The stack is abandoned as it stands; the next switch to it calls entry(argument), which doesn't return.
void begin_stack(CallStack& stack, void (*entry)(void*), void* argument);
// Makes `stack` that of the thread that calls, which is switched from first, and back to.
void use_thread_stack(CallStack& stack);
// Returns when something switches back to `from`. `last`: nothing will.
void switch_stack(CallStack& from, CallStack& to, bool last = false);

}  // namespace rz
