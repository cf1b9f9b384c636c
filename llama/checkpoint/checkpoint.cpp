#include "llama/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/fault.h"
#include "llama/checkpoint/finite.h"
#include "llama/model/hf.h"
#include "llama/base/sum_hash.h"
#include "comm/deadline.h"
#include "comm/fibers.h"
#include "comm/meter.h"

namespace rz {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t(4) << 20;
constexpr const char* kUnready = ".new";  // after the temporary folder's name, until its files are there

std::string path_of(StatePart part) { return std::string(stem_of(part)) + ".safetensors"; }

// ---- shares ---------------------------------------------------------------------------------------------------------

std::vector<int64_t> share_offsets(const Zero& zero, const OwnedRange& r) {
    return even_offsets(r.elements.size(), zero.ownership.shard_groups().replicate.size, 256);
}

std::vector<OwnedRange> own_share(const Zero& zero) {
    const size_t copy = size_t(zero.ownership.shard_groups().replicate.rank);
    std::vector<OwnedRange> share;
    for (const OwnedRange& r : zero.optimizer.owned()) {
        const std::vector<int64_t> offsets = share_offsets(zero, r);
        const int64_t size = offsets[copy + 1] - offsets[copy];
        if (size > 0) share.push_back(part_of(r, offsets[copy], size, zero.options));
    }
    return share;
}

std::vector<int64_t> shape_in(const StateArray& array, const ParamTable& table, const Tensor& t) {
    const bool matrix = table.is_block_matrix(t);
    if (array.whose != Whose::all && matrix != (array.whose == Whose::rows)) return {};
    return array.whose == Whose::rows ? std::vector<int64_t>{t.shape[0]} : t.shape;
}

TensorRun run_in(const StateArray& array, const OwnedRange& r, const ParamTable& table, const TensorRun& run) {
    TensorRun out = run;
    out.local = array.count(r, run.local - r.local_offset);
    if (array.whose != Whose::rows) return out;
    const int64_t columns = table.tensors()[size_t(run.tensor)].shape[1];
    out.first = ceil_div(run.first, columns);
    out.count = ceil_div(run.first + run.count, columns) - out.first;
    return out;
}

// ---- saving ---------------------------------------------------------------------------------------------------------

// How far a rank is with a save. Ranks tell each other over the control plane, in agree(): one whose disk takes nothing
// can still say so, and nobody waits for its part.
enum class CheckpointWriter::SavePhase : int32_t {
    writes,      // or waits for the folder
    wrote,       // its part is in the files
    failed,      // it will not be
    not_finite,  // the same: the state holds NaN or infinity
    completes,   // all have written or one never will: rank 0 writes the manifest, or removes the folder
    saved,       // said by rank 0: the checkpoint is there
    lost         // said by rank 0: there is none
};

struct CheckpointWriter::Job {
    Manifest manifest;
    std::string folder;
    Timer timer = {};
    SaveReport report = {};
    std::vector<uint64_t> hashes;  // of what this rank wrote; once rank 0 completes, of everything
    std::atomic<SavePhase> phase = SavePhase::writes;
    std::atomic<bool> cancelled = false;  // another rank has failed
    std::atomic<bool> busy = false;       // the thread is at work
    std::atomic<double> last = 0;         // when a call to the file system returned, on monotonic_clock()
    bool told = false;                    // all ranks know of each other's part
    std::string given_up;                 // the thread does not come back: why this rank counts as failed
    void moves() { last = monotonic_clock(); }
    void wrote(int64_t bytes) { report.traffic.written += bytes, moves(); }
    void has_read(int64_t bytes) { report.traffic.read += bytes, moves(); }
};

namespace {
struct Cancelled {};  // another rank has failed: nothing is wrong here
}  // namespace

// A file of this size, reserved where the file system can: a full disk then shows before anything is written. Rank 0
// syncs it later, in write_share().
static void create_sized(const std::string& path, int64_t bytes, const std::string& head, bool with_holes) {
    const OpenFile file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (again([&] { return ::ftruncate(file.fd, bytes); }) != 0) fail_errno(path, "ftruncate");
    if (!with_holes && !reserve(file.fd, bytes))
        fail_errno(path, format("reserving %s", human_bytes(bytes).c_str()).c_str());
    write_all(file.fd, 0, head.data(), int64_t(head.size()), path);
}

CheckpointWriter::CheckpointWriter(Process& process, Device device, Stream& compute, const Zero& zero,
                                   const ParamTable& table, const ModelConfig& config, SaveOptions options)
    : process_(process),
      device_(device),
      compute_(compute),
      zero_(zero),
      table_(table),
      config_(config),
      options_(std::move(options)),
      store_(options_.run_folder),
      share_(own_share(zero)) {
    plan();
}

bool CheckpointWriter::makes() const {
    return std::count(options_.makers.begin(), options_.makers.end(), process_.rank()) > 0;
}

// Calls body for what this rank writes of the range's array, in pieces of at most kPieceBytes: what it alone owns, and
// where hosts have files of their own whatever it reads again.
void CheckpointWriter::for_each_piece(const OwnedRange& r, const StateArray& array,
                                      const std::function<void(const TensorRun&)>& body) const {
    if (!(r.*array.where)) return;
    const auto visit = [&](const TensorRun& run) {
        const TensorRun here = run_in(array, r, table_, run);
        if ((run.owned || on_several_hosts()) && here.count > 0) body(here);
    };
    table_.for_each_run(r.local_offset, r.local_offset + r.elements.size(), kPieceBytes / size_of(array.dtype), visit);
}

CopyLayout CheckpointWriter::layout() const {
    CopyLayout all{.files = {}, .runs = {}, .bytes = copy_bytes_};
    for (const PartFile& p : parts_) {
        const int64_t e = size_of(p.array.dtype);
        const int64_t first = int64_t(all.files.size());
        for (const TensorFile& f : p.files) all.files.push_back(f.path);
        int64_t at = p.at;
        for (const OwnedRange& r : share_) {
            if (!(r.*p.array.where)) continue;
            for_each_piece(r, p.array, [&](const TensorRun& run) {
                for (size_t f = 0; f < p.files.size(); ++f)
                    if (p.files[f].holds(run.tensor))
                        all.runs.push_back({first + int64_t(f), p.files[f].offset(run.tensor) + run.first * e,
                                            run.count * e, at + run.local * e});
            });
            at += p.array.count(r) * e;
        }
    }
    return all;
}

CheckpointWriter::~CheckpointWriter() {
    if (job_ && !process_.alone()) job_->cancelled = true;  // the job ends, and no rank would complete it
    if (thread_.joinable()) thread_.join();
}

static int64_t part_bytes(const std::vector<OwnedRange>& share, const StateArray& array) {
    int64_t elements = 0;
    for (const OwnedRange& r : share)
        if (r.*array.where) elements += array.count(r);
    return round_up(elements * size_of(array.dtype), 256);
}

int64_t copy_of_state_bytes(const Zero& zero) {
    const std::vector<OwnedRange> share = own_share(zero);
    int64_t bytes = 0;
    for (const StateArray& array : state_arrays(zero.options))
        bytes = checked_add(bytes, part_bytes(share, array), "copy of the state");
    return bytes;
}

void CheckpointWriter::plan() {
    for (const StateArray& array : state_arrays(zero_.options)) {
        parts_.push_back({array,
                          tensor_files(array.stem, table_, array.dtype, options_.shard_above,
                                       [&](const Tensor& t) { return shape_in(array, table_, t); }),
                          copy_bytes_});
        copy_bytes_ = checked_add(copy_bytes_, part_bytes(share_, array), "copy of the state");
    }
    if (options_.background) reserve_copy();
    all_in_background_ = process_.max(options_.background ? 0 : 1) == 0;
}

// In use from now on, so that the first save, hours later, finds it.
void CheckpointWriter::reserve_copy() try {
    copy_ = Buffer::host_for(device_, copy_bytes_, MemKind::workspace, "copy of the state for the checkpoint");
    if (copy_) std::memset(copy_.data(), 0, size_t(copy_bytes_));
} catch (const Error&) {
    if (options_.mirror) throw;
    options_.background = false;
    note_ = format("saving   no memory for a copy of the state (%s on rank %d): training waits for each checkpoint",
                   human_bytes(copy_bytes_).c_str(), process_.rank());
}

// Rank 0: folder and files, under another name at first: the other ranks begin when they see the folder.
void CheckpointWriter::prepare(Job& job) {
    const std::string folder = job.folder + kUnready;
    int64_t bytes = int64_t(1) << 20;  // for the small files
    for (const PartFile& p : parts_)
        for (const TensorFile& f : p.files) bytes = checked_add(bytes, f.layout.file_size, "checkpoint");
    make_folder(store_.folder());
    struct statvfs disk;
    const auto free_bytes = [&] {
        return ::statvfs(store_.folder().c_str(), &disk) == 0 ? int64_t(disk.f_bavail) * int64_t(disk.f_frsize)
                                                              : INT64_MAX;
    };
    // Room may be made by deleting old ones early, but never the newest; in the end those too that --after-save has not
    // seen.
    if (on_several_hosts()) store_.collect(1, 0, last_good_);
    for (const int64_t held : {kMostHeld, int64_t(1)})
        if (!on_several_hosts() && free_bytes() < bytes && options_.keep > 0)
            job.report.unseen = store_.collect(std::max<int64_t>(1, options_.keep - 1), options_.keep_every, -1,
                                               options_.save_every, held);
    require(on_several_hosts() || free_bytes() >= bytes, "%s: %s are needed, %s are free", store_.folder().c_str(),
            human_bytes(bytes).c_str(), human_bytes(free_bytes()).c_str());
    if ((errno = fault_errno("checkpoint.mkdir")) != 0) fail_errno(folder, "mkdir");
    fs::create_directories(folder + "/optimizer");
    fault_point("checkpoint.made");
    for (const PartFile& p : parts_)
        for (const TensorFile& f : p.files) {
            create_sized(folder + "/" + f.path, f.layout.file_size, f.layout.header, on_several_hosts());
            job.moves();
        }
    fs::rename(folder, job.folder);
}

// The other ranks, whatever the error: a network file system may have trouble for a while.
void CheckpointWriter::await_folder(Job& job) {
    for (int wait_ms = 1; !job.cancelled; wait_ms = std::min(2 * wait_ms, 100)) {
        // Opened: network file systems then look again.
        ++job.report.traffic.opens;
        const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
        if (OpenFile(job.folder, again([&] { return ::open(job.folder.c_str(), flags); })).fd >= 0) return;
        job.moves();
        require(job.timer.seconds() < options_.timeout_s,
                "%s: is not there after %.0f s: is --out on a file system that all ranks share?", job.folder.c_str(),
                options_.timeout_s);
        Fibers::wait_a_little(wait_ms);
    }
    throw Cancelled();
}

void CheckpointWriter::take_copy() {
    fault_point("checkpoint.snapshot");
    if (!options_.background) {
        compute_.synchronize();
        return;
    }
    for (const PartFile& p : parts_) {
        int64_t at = p.at;
        for (const OwnedRange& r : share_) {
            if (!(r.*p.array.where)) continue;
            const int64_t bytes = p.array.count(r) * size_of(p.array.dtype);
            compute_.copy(copy_.bytes_at(at), r.*p.array.where, bytes);
            at += bytes;
        }
    }
    compute_.synchronize();
}

void CheckpointWriter::save(Manifest manifest) {
    settle();
    const Timer timer;
    job_ = std::make_unique<Job>();
    job_->moves();
    job_->hashes.assign(parts_.size() * table_.tensors().size(), 0);
    // One name on all ranks, new at every attempt.
    uint64_t attempt =
        uint64_t(std::chrono::steady_clock::now().time_since_epoch().count()) ^ (uint64_t(::getpid()) << 40);
    process_.broadcast(&attempt, 8, 0);
    const std::string id = format("%s-%08lx", manifest.run_id.c_str(), attempt & 0xffffffff);
    job_->folder = store_.temporary(manifest.step, id);
    job_->report.step = manifest.step;
    job_->report.folder = store_.path(manifest.step);
    job_->manifest = std::move(manifest);
    job_->manifest.run_id = id;
    if (stuck_ && !stuck_->busy) {
        thread_.join();
        stuck_.reset();
    }
    if (stuck_) {
        job_->report.error = format("rank %d: the file system still has not answered to the save of step %ld",
                                    process_.rank(), stuck_->report.step);
        job_->phase = process_.alone() ? SavePhase::lost : SavePhase::failed;
    } else {
        take_copy();
        begin(*job_, &CheckpointWriter::write, process_.alone() ? SavePhase::lost : SavePhase::failed);
    }
    const double stall = all_in_background_ ? timer.seconds() : 0;
    if (!all_in_background_) settle();
    (job_ ? job_->report : reports_.back()).stall_seconds = job_ ? stall : timer.seconds();
}

// On a thread: where a file system hangs, the rank can still say so.
void CheckpointWriter::begin(Job& job, void (CheckpointWriter::*work)(Job&), SavePhase without) try {
    if (Fibers::current()) return (this->*work)(job);
    if (thread_.joinable()) thread_.join();
    job.busy = true;
    thread_ = std::thread([this, &job, work, without, faults = Faults::here()] {
        const FaultScope armed(faults);
        try {
            (this->*work)(job);
        } catch (const std::exception&) {
            job.report.error = "out of memory";  // no allocation
            job.phase = without;
        }
        job.busy = false;
    });
} catch (const std::system_error& error) {
    job.busy = false;
    job.report.error = format("rank %d: no thread: %s", process_.rank(), error.what());
    job.phase = without;
}

// A failure is the save's. Nothing is thrown from here.
CheckpointWriter::SavePhase CheckpointWriter::attempt(Job& job, SavePhase good, const std::function<void()>& body) try {
    SavePhase phase = good;
    std::string error;
    try {
        body();
    } catch (const Cancelled&) {
        return SavePhase::failed;
    } catch (const NotFinite& e) {
        error = e.what(), phase = SavePhase::not_finite;
    } catch (const std::exception& e) {
        error = e.what(), phase = SavePhase::failed;
    }
    if (phase != good) job.report.error = format("rank %d: ", process_.rank()) + error;
    return phase;
} catch (const std::exception&) {  // not even for a message
    job.report.error = "out of memory";
    return SavePhase::failed;
}

// Writes a rank's share. If it is alone, nobody else is there to agree with.
void CheckpointWriter::write(Job& job) {
    SavePhase phase = attempt(job, SavePhase::wrote, [&] {
        device_.make_current();
        makes() ? prepare(job) : await_folder(job);
        write_share(job);
    });
    if (options_.mirror) {  // also without a part of its own: others wait for it
        const bool wrote = phase == SavePhase::wrote;
        const SavePhase mirrored =
            attempt(job, phase, [&] { options_.mirror(copy_.data(), wrote ? job.folder : std::string()); });
        phase = wrote ? mirrored : phase;
    }
    job.report.not_finite = phase == SavePhase::not_finite;
    if (process_.alone()) return conclude(job);
    job.report.write_seconds = job.timer.seconds();
    job.phase = phase;
}

// Rank 0 or the makers, once it is known what all have written: no half checkpoint stays.
void CheckpointWriter::conclude(Job& job) {
    if (job.report.error.empty()) attempt(job, SavePhase::saved, [&] { complete(job, job.hashes); });
    if (!job.report.error.empty()) {
        std::error_code none;
        fs::remove_all(job.folder + kUnready, none);
        fs::remove_all(job.folder, none);
    }
    job.report.write_seconds = job.timer.seconds();
    job.phase = job.report.error.empty() ? SavePhase::saved : SavePhase::lost;
}

// For a thread that does not come back the rank says itself that it has failed.
void CheckpointWriter::agree(bool late) {
    if (!job_) return;
    Job& job = *job_;
    if (late && job.busy && job.given_up.empty())
        job.given_up = format("rank %d: the file system has not answered to the end of the save within %.0f s",
                              process_.rank(), options_.timeout_s);
    const bool gone = !job.given_up.empty(), speaks = makes() && job.told;
    const SavePhase own = gone       ? (speaks || process_.alone() ? SavePhase::lost : SavePhase::failed)
                          : job.told ? (speaks ? job.phase.load() : SavePhase::completes)
                                     : job.phase.load();
    const std::vector<SavePhase> all = process_.all_gather(own);
    const auto has_failed = [](SavePhase s) { return s == SavePhase::failed || s == SavePhase::not_finite; };
    const bool failed = std::any_of(all.begin(), all.end(), has_failed);
    if (failed) job.cancelled = true;
    const auto says = [&](SavePhase s) {
        return std::count_if(options_.makers.begin(), options_.makers.end(),
                             [&](int m) { return all[size_t(m)] == s; });
    };
    const auto made = says(SavePhase::saved), makers = std::ssize(options_.makers);
    if (made + says(SavePhase::lost) == makers) return end(made == makers);
    if (job.told || std::count(all.begin(), all.end(), SavePhase::writes) > 0) return;
    job.told = true;
    if (failed) {
        const std::vector<std::string> why = process_.gather_text(gone ? job.given_up : job.report.error);
        for (size_t r = 0; r < why.size(); ++r)
            if (!why[r].empty()) {
                job.report.error = why[r];
                job.report.not_finite = all[r] == SavePhase::not_finite;
                break;
            }
    } else {
        job.hashes = process_.sums(job.hashes);
    }
    job.phase = stuck_ ? SavePhase::lost : SavePhase::completes;
    if (makes() && !gone && !stuck_) begin(job, &CheckpointWriter::conclude, SavePhase::lost);
}

void CheckpointWriter::write_share(Job& job) {
    const size_t tensors = table_.tensors().size();
    for (size_t p = 0; p < parts_.size(); ++p)
        for (const TensorFile& in : parts_[p].files) {
            bool writes = makes();  // it made the file, and syncs it
            for (const OwnedRange& r : share_)
                for_each_piece(r, parts_[p].array,
                               [&](const TensorRun& run) { writes = writes || in.holds(run.tensor); });
            if (writes) write_file(job, parts_[p], in, &job.hashes[p * tensors]);
        }
}

// hashes: of the part, by tensor
void CheckpointWriter::write_file(Job& job, const PartFile& part, const TensorFile& in, uint64_t* hashes) {
    const int64_t e = size_of(part.array.dtype);
    std::vector<char> staging(size_t(options_.background ? 0 : kPieceBytes)), back(static_cast<size_t>(kPieceBytes));
    OpenFile file = open_file(job.folder + "/" + in.path, O_RDWR);
    ++job.report.traffic.opens;
    if ((errno = fault_errno("checkpoint.shard")) != 0) fail_errno(file.path, "write");
    int64_t at = part.at;
    for (const OwnedRange& r : share_) {
        if (!(r.*part.array.where)) continue;
        for_each_piece(r, part.array, [&](const TensorRun& run) {
            if (!in.holds(run.tensor)) return;
            if (job.cancelled) throw Cancelled();
            const int64_t within = run.local * e, bytes = run.count * e;
            const void* data = options_.background ? copy_.bytes_at(at + within) : staging.data();
            if (!options_.background) {
                compute_.copy(staging.data(), static_cast<const char*>(r.*part.array.where) + within, bytes);
                compute_.synchronize();
            }
            if (run.owned) hashes[run.tensor] += sum_hash(data, run.first, run.count, e);
            require_finite(data, run.first, run.count, part.array.dtype,
                           format("the state of step %ld is not finite: %s", job.manifest.step, in.path.c_str()),
                           table_.tensors()[size_t(run.tensor)].name);
            write_all(file.fd, in.offset(run.tensor) + run.first * e, data, bytes, file.path);
            job.wrote(bytes);
        });
        at += part.array.count(r) * e;
    }
    fault_point("checkpoint.shard.done");
    if ((errno = fault_errno("checkpoint.fsync")) != 0 || again([&] { return ::fsync(file.fd); }) != 0)
        fail_errno(file.path, "fsync");
    job.moves();
    // Verified before an older checkpoint may go, by what the disk gives back and not the page cache.
    ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    std::vector<uint64_t> again(in.tensors.size(), 0);
    for (const OwnedRange& r : share_)
        for_each_piece(r, part.array, [&](const TensorRun& run) {
            if (!in.holds(run.tensor)) return;
            read_all(file.fd, in.offset(run.tensor) + run.first * e, back.data(), run.count * e, file.path);
            if (run.owned) again[in.place(run.tensor)] += sum_hash(back.data(), run.first, run.count, e);
            job.has_read(run.count * e);
        });
    for (const int t : in.tensors)
        require(again[in.place(t)] == hashes[t], "%s: %s was read back with other contents than were written",
                file.path.c_str(), table_.tensors()[size_t(t)].name.c_str());
    if (close_once(std::exchange(file.fd, -1)) != 0) fail_errno(file.path, "close");
}

void CheckpointWriter::complete(Job& job, const std::vector<uint64_t>& hashes) {
    fault_point("checkpoint.agreed");
    Manifest& m = job.manifest;
    for (size_t p = 0; p < parts_.size(); ++p)
        for (const TensorFile& in : parts_[p].files) {
            ManifestFile f{.path = in.path,
                           .bytes = in.layout.file_size,
                           .hash = text_hash(in.layout.header),
                           .holds_tensors = true,
                           .dtype = parts_[p].array.dtype,
                           .tensors = {}};
            for (const int i : in.tensors)
                f.tensors[table_.tensors()[size_t(i)].name] = hashes[p * table_.tensors().size() + size_t(i)];
            job.report.bytes += f.bytes;
            m.files.push_back(f);
        }
    if (parts_[0].files.size() > 1)
        write_file_atomically(job.folder + "/" + kWeightIndex, weight_index(parts_[0].files, table_));
    write_file_atomically(job.folder + "/config.json", config_to_json(config_, zero_.options.param_dtype));
    options_.tokenizer.write_to(job.folder);
    for (const auto& entry : fs::directory_iterator(job.folder)) {
        const std::string name = entry.path().filename();
        if (!entry.is_regular_file() || m.find(name)) continue;
        const std::string text = read_file(entry.path());
        m.files.push_back({.path = name, .bytes = int64_t(text.size()), .hash = text_hash(text), .tensors = {}});
    }
    fsync_folder(job.folder + "/optimizer");
    if ((errno = fault_errno("checkpoint.manifest")) != 0) fail_errno(job.folder + "/" + kManifestName, "write");
    write_file_atomically(job.folder + "/" + kManifestName, m.to_json());
    fault_point("checkpoint.manifest.done");
    check_checkpoint(job.folder);
    options_.await_records();  // a run that is killed from here on resumes after this step
    if (options_.mark) store_.mark(m.step);
    store_.publish(m.step, m.run_id);
    if (on_several_hosts()) return;  // the one before it stays until all hosts have this one
    try {
        const std::vector<int64_t> unseen =
            store_.collect(options_.keep, options_.keep_every, m.step, options_.save_every);
        job.report.unseen.insert(job.report.unseen.end(), unseen.begin(), unseen.end());
    } catch (const Error&) {  // an old one that can't be deleted is no reason to call the new one failed
    }
}

void CheckpointWriter::settle() {
    WaitClock waited;
    for (int wait_ms = 1; job_; wait_ms = std::min(2 * wait_ms, 50)) {
        agree(waited.look() >= options_.timeout_s);
        if (job_) Fibers::wait_a_little(wait_ms);
    }
}

void CheckpointWriter::end(bool saved) {
    last_ok_ = saved;
    if (saved) last_good_ = job_->manifest.step;
    if (!saved && makes() && job_->report.error.empty()) job_->report.error = "another host could not complete it";
    if (job_->given_up.empty()) {
        if (thread_.joinable() && !stuck_) thread_.join();
        reports_.push_back(job_->report);
        job_.reset();
    } else {  // the thread may still write into the report
        const int64_t step = job_->manifest.step;
        reports_.push_back({.step = step, .folder = store_.path(step), .error = job_->given_up});
        stuck_ = std::move(job_);
    }
}

CheckpointWriter::Progress CheckpointWriter::progress() const {
    if (!job_ || !job_->busy) return {};
    return {job_->report.step, monotonic_clock() - job_->last};
}

std::vector<SaveReport> CheckpointWriter::reports() { return std::exchange(reports_, {}); }

bool CheckpointWriter::finish() {
    settle();
    return last_ok_;
}

}  // namespace rz
