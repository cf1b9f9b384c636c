#include "llama/report/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <random>

#include "kernels/runtime/check.h"
#include "kernels/runtime/memory.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/report/plot.h"

namespace rz {

std::string duration(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0) return "?";
    const long long s = std::llround(seconds);
    if (s < 60) return format("%llds", s);
    if (s < 3600) return format("%lldm%02llds", s / 60, s % 60);
    if (s < 86400) return format("%lldh%02lldm", s / 3600, s / 60 % 60);
    const long long hours = (s + 1800) / 3600;
    return format("%lldd%02lldh", hours / 24, hours % 24);
}

static std::string short_number(double x) {
    if (x >= 1e9) return format("%.2fB", x / 1e9);
    if (x >= 1e6) return format("%.2fM", x / 1e6);
    if (x >= 1e4) return format("%.1fk", x / 1e3);
    return format("%.0f", x);
}

static std::string rate(double flops) {
    return flops >= 1e12 ? format("%.1f TFLOP/s", flops / 1e12) : format("%.1f GFLOP/s", flops / 1e9);
}

static std::string quoted(const std::string& text) { return Json(replace_invalid_utf8(text)).dump(); }

// JSON has no NaN or infinity.
static std::string number(double x) { return std::isfinite(x) ? format("%.9g", x) : "null"; }

// Drops what an earlier start of the run logged at or after `step`, what it reported of the step before if that is made
// anew, and a line that it did not finish.
static void truncate_metrics(const std::string& path, int64_t step, bool reports_due = false) {
    if (!is_file(path)) return;  // what else it is can't be opened, and that is said
    const std::string text = read_file(path, kRunMetrics);
    std::string kept;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        const std::string line = text.substr(at, end + 1 - at);  // sscanf would look for the end of the whole text
        long long logged = -1;
        if (std::sscanf(line.c_str(), "{\"step\":%lld", &logged) != 1 || logged < 0 || logged >= step) continue;
        const auto is_of = [&](const char* name) { return line.find(format(",\"%s\":", name)) == line.find(','); };
        if (reports_due && logged == step - 1 && (is_of("val_loss") || is_of("sample") || is_of("eval"))) continue;
        kept += line;
    }
    if (kept != text) write_file_atomically(path, kept);
}

Log::Log(const RunFacts& facts, const std::string& folder, int64_t first_step, Background* files)
    : facts_(facts), folder_(folder), files_(files), eta_(facts.steps, facts.stops_every) {
    colour_ = isatty(1) && !std::getenv("NO_COLOR");
    std::fflush(stdout);  // what was printed before comes first
    if (facts_.quiet || folder_.empty()) return;
    begins_ = first_step;
    const std::string path = folder_ + "/metrics.jsonl";
    if (first_step > 1) truncate_metrics(path, first_step, facts_.reports_due);
    metrics_ = open_to_append(path, first_step == 1);
    if (metrics_ < 0) warn_once("metrics.jsonl");
    text_ = open_to_append(folder_ + "/log.txt", first_step == 1);
    if (text_ < 0) warn_once("log.txt");
    unless_it_fails("TensorBoard's events", [&] { events_ = std::make_unique<EventFile>(folder_, first_step); });
    write_settings(first_step);
    if (!facts_.wandb.empty()) unless_it_fails("the file for W&B", [&] { open_wandb(first_step); });
}

Log::~Log() {
    wait_for_files();
    for (const int fd : {metrics_, text_, ranks_, stats_})
        if (fd >= 0) ::close(fd);
}

void Log::wait_for_files() {
    if (files_) files_->finish();
}

void Log::later(std::function<void()> work) {
    if (!files_) return work();
    files_->add(std::move(work));
}

void Log::line(const std::string& text, bool always) {
    if (facts_.quiet) return;
    if (facts_.prints || always) console_.line(text);
    if (text_ < 0) return;
    std::string plain;
    for (size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '\033')
            at = std::min(text.find('m', at), text.size() - 1);  // a colour
        else
            plain += text[at];
    }
    later([this, plain = printable(plain)] { write_text(plain); });
}

void Log::write_text(const std::string& plain) {
    if (!append_whole(text_, plain + "\n")) warn_once("log.txt");
}

// Below the lines of a terminal, a few times a second: "[=====>    ]  52% | eta 3m05s".
void Log::show_progress(int64_t step) {
    constexpr int kWidth = 30;
    const double now = timer_.seconds();
    if (!facts_.prints || !console_.is_terminal() || (now - shown_at_ < 0.2 && step < facts_.steps)) return;
    shown_at_ = now;
    const int done = facts_.steps > 0 ? int(kWidth * step / facts_.steps) : kWidth;
    const std::string bar = std::string(size_t(done), '=') + (done < kWidth ? ">" : "");
    console_.status(step == facts_.steps ? ""
                                         : format("[%-*s] %3ld%% | eta %s", kWidth, bar.c_str(),
                                                  100 * step / facts_.steps, duration(eta_.left(step)).c_str()));
}

void Log::step(const StepReport& r, bool print) {
    if (first_step_ < 0) first_step_ = r.step;
    eta_.step(r.step, r.seconds, timer_.seconds());
    if (facts_.quiet) return;
    const double tokens_per_second = double(r.tokens) / r.seconds;
    const double flops =
        tokens_per_second * (facts_.flops_per_token - (1 - r.attention_share) * facts_.attention_flops_per_token);
    if (print || !r.note.empty()) {
        const int width = int(std::to_string(facts_.steps).size());
        std::string speed = facts_.peak_flops > 0 ? format("%.1f%% MFU", 100 * flops / facts_.peak_flops) : rate(flops);
        if (r.utilisation >= 0) speed += format(", stages busy %.0f%%", 100 * r.utilisation);
        const char *bold = colour_ ? "\033[1m" : "", *plain = colour_ ? "\033[0m" : "";
        const std::string z = r.z_loss >= 0 ? format(" | z-loss %.3g", r.z_loss) : "";
        line(format("step %*ld/%ld | loss %s%.4f%s%s | norm %.3g | lr %.2e | %.0f ms | %s tok/s | %s | %s | eta %s%s%s",
                    width, r.step, facts_.steps, bold, r.loss, plain, z.c_str(), r.grad_norm, r.learning_rate,
                    1e3 * r.seconds, short_number(tokens_per_second).c_str(), speed.c_str(),
                    human_bytes(r.memory_bytes).c_str(), duration(eta_.left(r.step)).c_str(),
                    r.note.empty() ? "" : " | ", r.note.c_str()),
             !r.note.empty());
    }
    show_progress(r.step);
    std::string json = format(
        "{\"step\":%ld,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"seconds\":%s,\"tokens\":%ld,"
        "\"data_hash\":\"%016lx\",\"steps_per_second\":%s,\"tokens_per_second\":%s,\"flops\":%s,\"memory_bytes\":%ld",
        r.step, number(r.loss).c_str(), number(r.grad_norm).c_str(), number(r.learning_rate).c_str(),
        number(r.seconds).c_str(), r.tokens_so_far, r.data_hash, number(1 / r.seconds).c_str(),
        number(tokens_per_second).c_str(), number(flops).c_str(), r.memory_bytes);
    if (r.z_loss >= 0) json += ",\"z_loss\":" + number(r.z_loss);
    if (r.comm_seconds >= 0)
        json += format(",\"comm_seconds\":%s,\"exposed_seconds\":%s,\"overlap_efficiency\":%s,\"bytes_sent\":%ld",
                       number(r.comm_seconds).c_str(), number(r.exposed_seconds).c_str(), number(r.overlap).c_str(),
                       r.bytes_sent);
    for (size_t i = 0; i < r.axes.size(); ++i)
        json += format("%s\"%s\":{\"bytes_sent\":%ld,\"seconds\":%s}%s", i == 0 ? ",\"axes\":{" : ",",
                       r.axes[i].axis.c_str(), r.axes[i].bytes_sent, number(r.axes[i].seconds).c_str(),
                       i + 1 == r.axes.size() ? "}" : "");
    json += format(",\"phases\":{\"data_wait\":%s", number(r.data_wait).c_str());
    if (r.phases)
        json += format(",\"forward\":%s,\"backward\":%s,\"optimizer\":%s", number(r.phases->forward).c_str(),
                       number(r.phases->backward).c_str(), number(r.phases->optimizer).c_str());
    write_json(json + "}" + r.json + "}");
    const size_t ranks = r.seconds_by_rank.size();
    std::string by_rank;
    const auto add = [&](const char* name, double of_step) {  // a rank's equal share of the step, in its own time
        for (size_t i = 0; i < ranks; ++i)
            by_rank += (i ? "," : format(",\"%s\":[", name)) + number(of_step / r.seconds_by_rank[i]) +
                       (i + 1 == ranks ? "]" : "");
    };
    add("steps_per_second_by_rank", 1);
    add("tokens_per_second_by_rank", double(r.tokens) / double(ranks));
    add("flops_by_rank", flops * r.seconds / double(ranks));
    write_beside("ranks.jsonl", ranks_, r.step, by_rank + r.by_rank + "}");
    WandbFile::Scalars all{{"train/loss", r.loss},
                           {"train/grad_norm", r.grad_norm},
                           {"train/learning_rate", r.learning_rate},
                           {"train/tokens", double(r.tokens_so_far)},
                           {"speed/tokens_per_second", tokens_per_second},
                           {"speed/steps_per_second", 1 / r.seconds},
                           {"memory/peak_bytes", double(r.memory_bytes)}};
    if (r.z_loss >= 0) all.push_back({"train/z_loss", r.z_loss});
    all.push_back({"time/data_wait", r.data_wait});
    if (r.phases) {
        all.push_back({"time/forward", r.phases->forward});
        all.push_back({"time/backward", r.phases->backward});
        all.push_back({"time/optimizer", r.phases->optimizer});
    }
    if (facts_.peak_flops > 0) all.push_back({"speed/mfu", flops / facts_.peak_flops});
    if (r.comm_seconds >= 0) {
        all.push_back({"communication/seconds", r.comm_seconds});
        all.push_back({"communication/exposed_seconds", r.exposed_seconds});
        all.push_back({"communication/bytes_sent", double(r.bytes_sent)});
        for (const AxisTraffic& a : r.axes) all.push_back({"communication/bytes_sent/" + a.axis, double(a.bytes_sent)});
    }
    scalars(r.step, all);
}

void Log::validation(const ValidationReport& r) {
    if (facts_.quiet) return;
    const char *green = colour_ ? "\033[1;32m" : "", *plain = colour_ ? "\033[0m" : "";
    const std::string bits = r.bits_per_byte >= 0 ? format(" (%.4f bits per byte)", r.bits_per_byte) : "";
    const std::string ema = r.loss_ema >= 0 ? format(", of the average %.4f", r.loss_ema) : "";
    line(format("step %ld | %svalidation loss %.4f nats%s%s%s | %s", r.step, green, r.loss, bits.c_str(), ema.c_str(),
                plain, duration(r.seconds).c_str()));
    std::string json = format("{\"step\":%ld,\"val_loss\":%s", r.step, number(r.loss).c_str());
    if (r.bits_per_byte >= 0) json += ",\"val_bits_per_byte\":" + number(r.bits_per_byte);
    if (r.loss_ema >= 0) json += ",\"val_loss_ema\":" + number(r.loss_ema);
    std::string sets;
    WandbFile::Scalars scalars{{"val/loss", r.loss}};
    if (r.loss_ema >= 0) scalars.push_back({"val/loss_ema", r.loss_ema});
    if (r.bits_per_byte >= 0) scalars.push_back({"val/bits_per_byte", r.bits_per_byte});
    for (const auto& [name, loss] : r.by_set) {
        sets += (sets.empty() ? "" : ",") + quoted(name) + ":" + number(loss);
        scalars.push_back({"val/loss/" + name, loss});
    }
    if (!sets.empty()) json += ",\"val_loss_by_set\":{" + sets + "}";
    write_json(json + "}");
    this->scalars(r.step, scalars);
    plot();
}

void Log::event(int64_t step, const std::string& text, const std::string& name, const std::string& json) {
    line(text);
    if (!facts_.quiet) write_json(format("{\"step\":%ld,\"%s\":%s}", step, name.c_str(), json.c_str()));
}

// Names that W&B's users look for; the rest has one name in both.
static std::string wandb_key(const std::string& name) {
    static const std::map<std::string, std::string> kKeys = {{"train/grad_norm", "grad_norm"},
                                                             {"train/learning_rate", "lr"},
                                                             {"train/tokens", "tokens"},
                                                             {"speed/tokens_per_second", "tokens_per_second"},
                                                             {"speed/mfu", "mfu"}};
    const auto at = kKeys.find(name);
    return at == kKeys.end() ? name : at->second;
}

void Log::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& named) {
    if (!events_ && !wandb_) return;
    later([this, step, named] {
        std::vector<EventFile::Scalar> out;  // names are `named`'s
        WandbFile::Scalars row;
        for (const auto& [name, value] : named) {
            out.push_back({name, float(value)});
            row.push_back({wandb_key(name), value});
        }
        if (events_ && !events_->write(step, out)) warn_once("TensorBoard's events");
        if (wandb_ && !wandb_->history(step, row)) warn_once("the file for W&B");
    });
}

// A run continues without what only describes it.
void Log::write_settings(int64_t first_step) {
    if (facts_.settings.empty()) return;
    unless_it_fails("run.json", [&] {
        OrderedJson json = OrderedJson::object();
        for (const auto& [key, value] : facts_.settings) json[key] = replace_invalid_utf8(value);
        write_file_atomically(folder_ + "/run.json", json.dump(1) + "\n");
    });
    std::string table = "| setting | value |\n|---|---|\n";
    for (const auto& [key, value] : facts_.settings) table += "| " + key + " | " + replace_invalid_utf8(value) + " |\n";
    if (events_ && !events_->write_text(first_step, "settings", table)) warn_once("TensorBoard's events");
}

// The id stays the same over all starts of a run.
void Log::open_wandb(int64_t first_step) {
    const std::string folder = folder_ + "/wandb", path = folder + "/run-id";
    std::string id;
    if (first_step > 1 && path_exists(path)) id = read_file(path);
    if (id.size() != 8 || id.find_first_not_of("0123456789abcdef") != std::string::npos) {
        id = format("%08x", std::random_device()());
        make_folder(folder);
        write_file_atomically(path, id);
    }
    const std::string name = facts_.wandb_name.empty() ? facts_.title : facts_.wandb_name;
    wandb_ = std::make_unique<WandbFile>(folder, WandbIdentity{facts_.wandb, id, name, facts_.settings, first_step});
    const std::string made = wandb_->path().substr(0, wandb_->path().rfind('/'));
    line("wandb    " + made + ": wandb sync " + (first_step > 1 ? "--append " : "") + "uploads it");
}

void Log::complete_rows() {
    if (!wandb_) return;
    later([this] {
        if (!wandb_->flush_row()) warn_once("the file for W&B");
    });
}

void Log::plot() {
    if (metrics_ < 0) return;
    later([this] {
        try {
            write_loss_plot(folder_ + "/loss.svg", folder_ + "/metrics.jsonl", facts_.title, "");
        } catch (const std::exception&) {
            warn_once("loss.svg");
        }
    });
}

void Log::finish() {
    plot();
    if (wandb_)
        later([this] {
            if (!wandb_->finish(0)) warn_once("the file for W&B");
        });
    line("done in " + duration(timer_.seconds()));
}

// With the time as its last member. A full disk must not end a run: one warning, then silence.
void Log::write_json(std::string object) {
    if (metrics_ < 0) return;
    object.back() = ',';
    object += format("\"time\":%lld}\n", std::llround(1e3 * wall_clock()));
    later([this, object = std::move(object)] {
        errno = fault_errno("log.write");
        if (errno != 0 || !append_whole(metrics_, object)) warn_once("metrics.jsonl");
    });
}

// A line of a file like metrics.jsonl: what comes after the step. The file is opened with the first.
void Log::write_beside(const char* name, int& file, int64_t step, const std::string& members) {
    if (metrics_ < 0) return;
    later([this, name, &file, line = format("{\"step\":%ld", step) + members + "\n"] {
        const std::string path = folder_ + "/" + name;
        if (file < 0) {
            if (begins_ > 1) unless_it_fails(name, [&] { truncate_metrics(path, begins_); });
            file = open_to_append(path, begins_ == 1);
        }
        if (file < 0 || !append_whole(file, line)) warn_once(name);
    });
}

void Log::statistics(int64_t step, const std::string& json) {
    write_beside("stats.jsonl", stats_, step, "," + json.substr(1));
}

void Log::bad_step(int64_t step, const std::string& json) {
    if (metrics_ < 0) return;
    const std::string name = format("bad_step_%ld.json", step);
    line(format("         %s: the last steps, their samples and statistics", name.c_str()));
    later([this, name, json] { describe(name, json + "\n"); });
}

void Log::describe(const std::string& name, const std::string& text) {
    if (!facts_.quiet && !folder_.empty())
        unless_it_fails(name.c_str(), [&] { write_file_atomically(folder_ + "/" + name, text); });
}

void Log::unless_it_fails(const char* what, const std::function<void()>& write) try { write(); } catch (const Error&) {
    warn_once(what);
}

void Log::warn_once(const char* what) {
    if (!warned_)
        std::fprintf(stderr, "train_llama: can't write %s in %s: %m; training continues without it\n", what,
                     folder_.c_str());
    warned_ = true;
}

}  // namespace rz
