#pragma once
// Deadlines that forgive a pause of the whole job, and an alarm for calls that block.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace rz {

class Watch;

// How long a thread has waited. A job that was stopped as a whole (SIGSTOP, scontrol suspend, a suspended machine)
// continues: a gap of more than 5 s between two looks does not count. A waiting thread looks at least once a second.
class WaitClock {
   public:
    using Clock = std::chrono::steady_clock;
    double look(Clock::time_point now = Clock::now()) {
        if (now - last_ > std::chrono::seconds(5)) began_ += now - last_;
        last_ = now;
        return std::chrono::duration<double>(now - began_).count();
    }
    void restart(Clock::time_point now = Clock::now()) { began_ = last_ = now; }

   private:
    Clock::time_point began_ = Clock::now(), last_ = began_;
};

// Ranks may start minutes apart on a busy cluster, whatever the deadline in training is.
double bring_up_s(double timeout_s);

// Ends the process with kExitDeadline if the call that it stands before does not return in time; pauses are forgiven.
// `advice` says what may be wrong. With a watch the reports of all ranks are written first. `expired`, if given, ends
// the process another way.
class Alarm {
   public:
    Alarm(double seconds, std::string what, std::string advice, std::shared_ptr<Watch> watch = nullptr,
          std::function<void()> expired = nullptr);
    ~Alarm();
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::thread thread_;
};

}  // namespace rz
