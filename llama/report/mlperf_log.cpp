#include "llama/report/mlperf_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/runtime/check.h"
#include "kernels/runtime/request.h"
#include "llama/base/clock.h"

namespace rz {

MlperfLog::MlperfLog(const std::string& file)
    : file_(file, ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0666)) {
    require_request(file_.fd >= 0 || errno != EEXIST,
                    "--mllog %s: is there already, and holds one run\n  name another file, or remove it", file.c_str());
    require_request(file_.fd >= 0, "--mllog %s: cannot be written: %s\n  name a new file in a folder that is there",
                    file.c_str(), std::strerror(errno));
    record(Event::point, "cache_clear", "false");  // the system's caches are as they were
    record(Event::start, "init_start", "null");
}

void MlperfLog::record(Event event, const char* key, const std::string& value, int64_t samples,
                       const std::string& more) {
    constexpr const char* kTypes[] = {"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"};
    const std::string metadata = samples < 0 ? more : format("\"samples_count\": %ld", samples) + more;
    const std::string line = format(
        ":::MLLOG {\"namespace\": \"\", \"time_ms\": %lld, \"event_type\": \"%s\", \"key\": \"%s\", \"value\": %s, "
        "\"metadata\": {%s}}\n",
        std::llround(1e3 * wall_clock()), kTypes[int(event)], key, value.c_str(), metadata.c_str());
    if (file_.fd < 0 || append_whole(file_.fd, line)) return;
    std::fprintf(stderr, "train_llama: --mllog %s: cannot be written: %s; the run goes on without it\n",
                 file_.path.c_str(), std::strerror(errno));
    ::close(std::exchange(file_.fd, -1));
}

void MlperfLog::run_start(const std::vector<std::pair<std::string, std::string>>& settings) {
    for (const auto& [key, value] : settings) record(Event::point, key.c_str(), value);
    record(Event::stop, "init_stop", "null");
    record(Event::start, "run_start", "null");
    record(Event::start, "block_start", "null", 0);
}

void MlperfLog::evaluation_start(int64_t samples) {
    record(Event::stop, "block_stop", "null", samples);
    record(Event::start, "eval_start", "null", samples);
}

void MlperfLog::evaluation_stop(int64_t samples, double loss, bool reached) {
    reached_ |= reached;
    record(Event::point, "eval_accuracy", std::isfinite(loss) ? format("%.9g", loss) : "null", samples);
    record(Event::stop, "eval_stop", "null", samples);
    if (!reached_) record(Event::start, "block_start", "null", samples);
}

void MlperfLog::run_stop(int64_t samples) {
    record(Event::stop, "run_stop", "null", samples, format(", \"status\": \"%s\"", reached_ ? "success" : "aborted"));
    record(Event::point, "train_samples", std::to_string(samples));
}

}  // namespace rz
