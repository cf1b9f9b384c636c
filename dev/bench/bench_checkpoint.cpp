// Saving and loading the state of a run: how long training stalls, how fast the files are written, how long a resume
// takes.
//
//   build/dev/bench_checkpoint --preset tiny --dtype bf16 --folder /fast/disk
//   mpirun -n 4 build/dev/bench_checkpoint --preset small --dtype bf16 --zero 3 --folder /shared/disk
//
// Every save writes, syncs, reads back and verifies. Beside it, the disk's own rate: the same bytes in one file,
// written and synced by rank 0. Medians.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "comm/meter.h"
#include "dev/common/tool.h"
#include "kernels/elementwise.h"
#include "llama/base/atomic_file.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/base/json.h"
#include "llama/model/presets.h"
#include "llama/train/train_state.h"
#include "llama/base/version.h"

namespace rz {
namespace {

// Seconds to write and sync `bytes` in pieces of 4 MiB.
double disk_seconds(const std::string& folder, int64_t bytes) {
    const std::string path = folder + "/.bench";
    std::vector<char> piece(4 << 20, 'x');
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    require(fd >= 0, "%s: can't be written", path.c_str());
    const Timer timer;
    for (int64_t at = 0; at < bytes; at += int64_t(piece.size()))
        write_all(fd, at, piece.data(), std::min<int64_t>(int64_t(piece.size()), bytes - at), path);
    ::fsync(fd);
    const double seconds = timer.seconds();
    ::close(fd);
    ::unlink(path.c_str());
    return seconds;
}

struct Flags {
    std::string preset = "tiny", dtype = "bf16", folder = ".", device = "auto", json;
    int stage = 0, saves = 3;
    bool wait = false;
    std::vector<std::string> command;
};

struct Times {
    std::vector<double> stall, write, load;
    int64_t bytes = 0;
};

void print(const Flags& f, const Times& t, const std::string& folder, Device device, int ranks) {
    const double disk = disk_seconds(folder, t.bytes);
    const double gb = double(t.bytes) / 1e9;
    std::printf("# %s, %d ranks, --zero %d, commit %s\n# command:", device.name().c_str(), ranks, f.stage,
                build_commit());
    for (const std::string& word : f.command) std::printf(" %s", word.c_str());
    std::printf("\n%-10s %-5s %10s %10s %10s %12s %12s %10s %12s\n", "model", "type", "bytes", "stall s", "saved s",
                "write GB/s", "disk GB/s", "load s", "load GB/s");
    std::printf("%-10s %-5s %10s %10.3f %10.3f %12.2f %12.2f %10.3f %12.2f\n", f.preset.c_str(), f.dtype.c_str(),
                human_bytes(t.bytes).c_str(), median(t.stall), median(t.write), gb / median(t.write), gb / disk,
                median(t.load), gb / median(t.load));
    if (!f.json.empty())
        write_file_atomically(f.json, Json{{"device", device.name()},
                                           {"ranks", ranks},
                                           {"zero", f.stage},
                                           {"commit", build_commit()},
                                           {"preset", f.preset},
                                           {"dtype", f.dtype},
                                           {"bytes", t.bytes},
                                           {"stall_s", median(t.stall)},
                                           {"saved_s", median(t.write)},
                                           {"load_s", median(t.load)},
                                           {"disk_s", disk}}
                                              .dump(1) +
                                          "\n");
}

int run(int argc, char** argv) {
    Flags f;
    f.command.assign(argv, argv + argc);
    CLI::App app{"Times checkpoints: stall, write rate, load"};
    app.add_option("--preset", f.preset, "Model")->capture_default_str();
    app.add_option("--dtype", f.dtype, "Data type of the parameters: fp32 or bf16.")
        ->capture_default_str()
        ->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_option("--folder", f.folder, "Folder to write to; it needs room for three checkpoints.")
        ->capture_default_str();
    app.add_option("--zero", f.stage, "ZeRO stage.")->capture_default_str()->check(CLI::Range(0, 3));
    app.add_option("--device", f.device, "Device: auto, cuda or cpu.")->capture_default_str();
    app.add_option("--saves", f.saves, "Number of repetitions.")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_flag("--no-background-save", f.wait, "Write without a copy of the state.");
    app.add_option("--json", f.json, "File to write the numbers to.");
    CLI11_PARSE(app, argc, argv);

    Process process;
    return process.run([&] {
        const Device device =
            process.choose_device(parse_name<DeviceChoice>("--device", f.device), TransportKind::automatic, nullptr);
        device.make_current();
        ModelConfig config = find_preset(f.preset).config;
        config.resolve();
        Mesh mesh(process, device);
        const DType dtype = parse_dtype("--dtype", f.dtype);
        TrainState core(config,
                        {.zero = {.stage = f.stage, .param_dtype = dtype, .grad_dtype = dtype, .wire_dtype = dtype},
                         .stage = {.B = 1, .T = 64}},
                        device, mesh);
        initialise_weights(core.table, 1, core.compute, core.zero);
        core.compute.synchronize();
        const std::string folder = f.folder + "/bench_checkpoint";
        if (process.is_root()) make_folder(folder);
        process.barrier();

        Times t;
        CheckpointWriter writer(process, device, core.compute, core.zero, core.table, config,
                                {.run_folder = folder, .background = !f.wait});
        for (int i = 1; i <= f.saves; ++i) {
            Manifest m;
            m.run_id = "bench";
            m.step = i;
            process.barrier();
            const Timer saving;
            writer.save(m);
            t.stall.push_back(saving.seconds());
            require(writer.finish(), "the save failed");
            t.write.push_back(saving.seconds());
            const std::string path = CheckpointStore(folder).path(i);
            process.barrier();
            const Timer loading;
            const std::string problem =
                load_state(path, check_checkpoint(path), core.table, process, device, core.compute, core.zero, nullptr);
            require(problem.empty(), "%s", problem.c_str());
            t.load.push_back(loading.seconds());
            for (const SaveReport& r : writer.reports()) t.bytes = r.bytes;
        }
        if (process.is_root()) {
            print(f, t, folder, device, process.size());
            std::filesystem::remove_all(folder);
        }
        return 0;
    });
}

}  // namespace
}  // namespace rz

int main(int argc, char** argv) { return rz::run_tool("bench_checkpoint", rz::run, argc, argv); }
