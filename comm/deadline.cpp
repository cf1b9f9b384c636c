#include "comm/deadline.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "comm/process.h"
#include "comm/watch.h"

namespace rz {

double bring_up_s(double timeout_s) { return std::max(timeout_s, 60.0); }

Alarm::Alarm(double seconds, std::string what, std::string advice, std::shared_ptr<Watch> watch,
             std::function<void()> expired)
    : thread_([=, this] {
          WaitClock waited;
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return done_; })) {
              if (waited.look() < seconds) continue;
              const std::string text =
                  format("%s did not end within %.0f s: %s", what.c_str(), seconds, advice.c_str());
              std::fprintf(stderr, "%s\n", text.c_str());
              std::fflush(stderr);
              if (watch) try {
                      watch->fail_deadline(text);
                  } catch (const std::exception&) {  // reported
                  }
              if (expired) expired();
              _exit(kExitDeadline);
          }
      }) {}

Alarm::~Alarm() {
    {
        std::lock_guard lock(mutex_);
        done_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

}  // namespace rz
