#pragma once
// MLPerf Training's log of a run (--mllog FILE): one record per line, as MLCommons' checker (mlperf-logging) reads it.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llama/base/atomic_file.h"

namespace rz {

class MlperfLog {
   public:
    // Opens a new file and begins with init_start: what is before run_start is not timed. A file that can't be written
    // later is said once, and the run goes on.
    explicit MlperfLog(const std::string& file);

    // The run's settings, as names and JSON; then it is timed.
    void run_start(const std::vector<std::pair<std::string, std::string>>& settings);
    // `samples`: sequences that were trained on so far.
    void evaluation_start(int64_t samples);
    void evaluation_stop(int64_t samples, double loss, bool reached);
    void run_stop(int64_t samples);

   private:
    enum class Event { point, start, stop };
    void record(Event, const char* key, const std::string& value, int64_t samples = -1, const std::string& more = "");

    OpenFile file_;
    bool reached_ = false;
};

}  // namespace rz
