#pragma once
// Bodies that take turns on the calling thread, each on a stack of its own: ranks by the thousand in one process. A
// body runs until it parks or gives way; no two run at once, so nothing that only they share needs a lock.

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "kernels/runtime/call_stack.h"

namespace rz {

class Fibers {
   public:
    explicit Fibers(int count, size_t stack_bytes = size_t(512) << 10);
    Fibers(const Fibers&) = delete;
    Fibers& operator=(const Fibers&) = delete;

    // body(i) for each. While none can run, `idle` is called, which wakes some or says why none ever will: then, and
    // when a body throws, whoever is parked throws too, and run() throws the first error.
    void run(const std::function<void(int)>& body, const std::function<std::string()>& idle);

    // The fibers whose body calls; nullptr: none does.
    static Fibers* current();
    int self() const { return self_; }
    void park();       // until wake(self()); throws where that can't come any more
    void wake(int i);  // of one that is parked
    void yield();      // the others that are ready go first
    // For who looks again and again at what others do: the other fibers go first, or, outside of one, time passes.
    static void wait_a_little(int milliseconds);
    int count() const { return int(states_.size()); }

   private:
    enum class State { ready, running, parked, done };
    void enter();
    void resume(int i);
    void leave();
    void fail(std::exception_ptr error, const std::string& why);

    CallStacks stacks_;
    CallStack thread_;  // of who called run()
    std::vector<State> states_;
    std::function<void(int)> body_;
    std::deque<int> ready_;
    int self_ = -1, running_ = 0;
    std::exception_ptr error_;
    std::string why_;
};

}  // namespace rz
