#include "comm/fibers.h"

#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/runtime/check.h"

namespace rz {

static thread_local Fibers* active = nullptr;

Fibers::Fibers(int count, size_t stack_bytes) : stacks_(count, stack_bytes), states_(size_t(count), State::done) {}

Fibers* Fibers::current() { return active; }

void Fibers::enter() {
    try {
        body_(self_);
    } catch (const std::exception& error) {
        fail(std::current_exception(), error.what());
    } catch (...) {
        fail(std::current_exception(), "an error without a text");
    }
    states_[size_t(self_)] = State::done;
    --running_;
    leave();
}

void Fibers::resume(int i) {
    self_ = i;
    states_[size_t(i)] = State::running;
    active = this;
    switch_stack(thread_, stacks_[i]);
    active = nullptr;
    self_ = -1;
}

void Fibers::leave() { switch_stack(stacks_[self_], thread_, /*last=*/states_[size_t(self_)] == State::done); }

void Fibers::run(const std::function<void(int)>& body, const std::function<std::string()>& idle) {
    require(!active, "fibers inside a fiber");
    body_ = body;
    error_ = nullptr;
    why_.clear();
    use_thread_stack(thread_);
    ready_.clear();
    for (int i = 0; i < count(); ++i) {
        begin_stack(
            stacks_[i], [](void* all) { static_cast<Fibers*>(all)->enter(); }, this);
        states_[size_t(i)] = State::ready;
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
        states_[size_t(self_)] = State::parked;
        leave();
    }
    if (!why_.empty()) throw Error("stopped, for another failed: " + why_);
}

void Fibers::wake(int i) {
    if (states_[size_t(i)] != State::parked) return;
    states_[size_t(i)] = State::ready;
    ready_.push_back(i);
}

void Fibers::yield() {
    states_[size_t(self_)] = State::ready;
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
