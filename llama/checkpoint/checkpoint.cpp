#include "llama/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>

#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/fault.h"
#include "llama/checkpoint/finite.h"
#include "llama/model/hf.h"
#include "llama/base/sum_hash.h"
#include "comm/fibers.h"

namespace rz {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t(4) << 20;
constexpr const char* kReports = "ranks.tmp";  // in the temporary folder: how far each rank is, and its hashes

const char* stem_of(StatePart part) {
    switch (part) {
        case StatePart::model:
            return "model";
        case StatePart::master:
            return "optimizer/master";
        case StatePart::m:
            return "optimizer/m";
        case StatePart::v:
            return "optimizer/v";
        case StatePart::count_:
            break;
    }
    fail("no such part of a checkpoint");
}

std::string path_of(StatePart part) { return std::string(stem_of(part)) + ".safetensors"; }

static const void* data_of(const OwnedRange& r, StatePart part) {
    return part == StatePart::model ? r.param : part == StatePart::master ? r.master : part == StatePart::m ? r.m : r.v;
}

static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- shares ---------------------------------------------------------------------------------------------------------

// Element `by` further on, in every array.
static OwnedRange cut(const OwnedRange& r, int64_t by, int64_t count, const ZeroOptions& o) {
    const auto move = [&](void* p, DType d) -> void* { return static_cast<char*>(p) + by * size_of(d); };
    return {
        {r.unit, {r.elements.begin + by, r.elements.begin + by + count}, r.local + by, r.logical + by, r.packed + by},
        move(r.param, o.param_dtype),
        move(r.master, o.master_dtype),
        move(r.m, o.adam_dtype),
        move(r.v, o.adam_dtype),
        move(r.grad, o.grad_dtype)};
}

static ElementRange share_of(const OwnedRange& r, const Zero& zero) {
    const Place holder = zero.ownership.sharing().copies;
    const std::vector<int64_t> cuts = even_offsets(r.elements.size(), holder.size, 256);
    return {cuts[size_t(holder.rank)], cuts[size_t(holder.rank) + 1]};
}

std::vector<OwnedRange> own_share(const Zero& zero) {
    std::vector<OwnedRange> share;
    for (const OwnedRange& r : zero.optimizer.owned())
        if (const ElementRange s = share_of(r, zero); s.size() > 0)
            share.push_back(cut(r, s.begin, s.size(), zero.options));
    return share;
}

// Calls body for what this rank alone writes of the range, in pieces of at most kPieceBytes.
static void for_each_piece(const ParamTable& table, const OwnedRange& r, int64_t element_bytes,
                           const std::function<void(const TensorRun&)>& body) {
    table.for_each_run(r.local, r.local + r.elements.size(), kPieceBytes / element_bytes, [&](const TensorRun& run) {
        if (run.owned) body(run);
    });
}

// ---- saving ---------------------------------------------------------------------------------------------------------

// A save on its way. Each rank has a slot in the file of reports, reserved before anything is written, so that a full
// disk can still be reported: u64 status, then hashes, then 512 bytes of text. Ranks form a tree: a slot has the sums
// of the ranks below as well, so no rank reads more than two slots however many there are.
struct CheckpointWriter::Job {
    Manifest manifest;
    std::string folder;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    SaveReport report = {};
    bool prepared = true;                 // rank 0 could make folder and files
    std::atomic<bool> cancelled = false;  // another rank could not
    std::atomic<bool> done = false;
    std::atomic<double> last = 0;  // when a call to the file system returned, on monotonic_clock()
    void moves() { last = monotonic_clock(); }
    void wrote(int64_t bytes) { report.traffic.written += bytes, moves(); }
    void has_read(int64_t bytes) { report.traffic.read += bytes, moves(); }
};
enum SlotStatus : uint64_t {
    kWriting = 0,
    kWritten = 0x6e657474697277,
    kFailed = 0x64656c696166,
    kNotFinite = 0x6e616e
};
constexpr int64_t kSlotText = 512;

static int64_t slot_bytes(size_t hashes) { return 8 + 8 * int64_t(hashes) + kSlotText; }

namespace {
struct File {  // closes itself
    File(const std::string& p, int flags) : path(p) {
        for (int attempt = 0; (fd = ::open(p.c_str(), flags | O_CLOEXEC, 0666)) < 0;)
            if (!try_again(errno, attempt, path, "open")) fail_errno(path, "open");
    }
    ~File() {
        if (fd >= 0) ::close(fd);
    }
    File(const File&) = delete;
    void sync_and_close() {
        if (::fsync(fd) != 0) fail_errno(path, "fsync");
        const int f = fd;
        fd = -1;
        if (::close(f) != 0) fail_errno(path, "close");
    }
    std::string path;
    int fd = -1;
};
}  // namespace

// A file of this size, reserved where the file system can: a full disk then shows before anything is written. Rank 0
// syncs it later, in write_share().
static void create_sized(const std::string& path, int64_t bytes, const std::string& head) {
    File file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (::ftruncate(file.fd, bytes) != 0) fail_errno(path, "ftruncate");
    if (::fallocate(file.fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)
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

CheckpointWriter::~CheckpointWriter() {
    if (job_) job_->cancelled = true;  // of ranks that still wait for files
    if (thread_.joinable()) thread_.join();
}

// What is saved of the elements, in the order in which the copy has it.
static std::vector<std::pair<StatePart, DType>> saved_parts(const ZeroOptions& o) {
    std::vector<std::pair<StatePart, DType>> parts = {{StatePart::model, o.param_dtype}};
    if (o.master_dtype != o.param_dtype) parts.emplace_back(StatePart::master, o.master_dtype);
    parts.emplace_back(StatePart::m, o.adam_dtype);
    parts.emplace_back(StatePart::v, o.adam_dtype);
    return parts;
}

static int64_t part_bytes(const std::vector<OwnedRange>& share, DType dtype) {
    int64_t elements = 0;
    for (const OwnedRange& r : share) elements += r.elements.size();
    return round_up(elements * size_of(dtype), 256);
}

int64_t copy_of_state_bytes(const Zero& zero) {
    const std::vector<OwnedRange> share = own_share(zero);
    int64_t bytes = 0;
    for (const auto& [part, dtype] : saved_parts(zero.options))
        bytes = checked_add(bytes, part_bytes(share, dtype), "copy of the state");
    return bytes;
}

void CheckpointWriter::plan() {
    for (const auto& [part, dtype] : saved_parts(zero_.options)) {
        parts_.push_back({part, dtype, tensor_files(stem_of(part), table_, dtype, options_.shard_above), copy_bytes_});
        copy_bytes_ = checked_add(copy_bytes_, part_bytes(share_, dtype), "copy of the state");
    }
    if (options_.background) reserve_copy();
    all_in_background_ = process_.max(options_.background ? 0 : 1) == 0;
}

// In use from now on, so that the first save, hours later, finds it.
void CheckpointWriter::reserve_copy() try {
    copy_ = Buffer::host_for(device_, copy_bytes_, MemKind::workspace, "copy of the state for the checkpoint");
    if (copy_) std::memset(copy_.data(), 0, size_t(copy_bytes_));
} catch (const Error&) {
    options_.background = false;
    note_ = format("saving   no memory for a copy of the state (%s on rank %d): training waits for each checkpoint",
                   human_bytes(copy_bytes_).c_str(), process_.rank());
}

std::string CheckpointWriter::prepare(Job& job) try {
    const std::string& folder = job.folder;
    int64_t bytes = int64_t(1) << 20;  // for the small files
    for (const PartFile& p : parts_)
        for (const TensorFile& f : p.files) bytes = checked_add(bytes, f.layout.file_size, "checkpoint");
    make_folder(store_.folder());
    struct statvfs disk;
    const auto free_bytes = [&] {
        return ::statvfs(store_.folder().c_str(), &disk) == 0 ? int64_t(disk.f_bavail) * int64_t(disk.f_frsize)
                                                              : INT64_MAX;
    };
    // Room may be made by deleting old ones early, but never the newest.
    if (free_bytes() < bytes && options_.keep > 0)
        store_.collect(std::max<int64_t>(1, options_.keep - 1), options_.keep_every);
    require(free_bytes() >= bytes, "%s: %s are needed, %s are free", store_.folder().c_str(),
            human_bytes(bytes).c_str(), human_bytes(free_bytes()).c_str());
    if ((errno = fault_errno("checkpoint.mkdir")) != 0) fail_errno(folder, "mkdir");
    fs::create_directories(folder + "/optimizer");
    fault_point("checkpoint.made");
    const size_t hashes = parts_.size() * table_.tensors().size();
    for (const PartFile& p : parts_)
        for (const TensorFile& f : p.files) {
            create_sized(folder + "/" + f.path, f.layout.file_size, f.layout.header);
            job.moves();
        }
    // The last one: the other ranks begin when they see it.
    create_sized(folder + "/" + kReports + ".new", slot_bytes(hashes) * zero_.streams.mesh.world().size, "");
    fs::rename(folder + "/" + kReports + ".new", folder + "/" + kReports);
    return "";
} catch (const std::exception& error) {
    std::error_code none;
    fs::remove_all(job.folder, none);
    return error.what();
}

void CheckpointWriter::prepare_into(Job& job) {
    job.report.error = prepare(job);
    job.prepared = job.report.error.empty();
}

// Whatever the error, until the deadline: a rank that gave up here could not say so, and rank 0 would wait for its part
// as long.
bool CheckpointWriter::await_files(Job& job) {
    const std::string path = job.folder + "/" + kReports;
    for (int wait_ms = 1; !job.cancelled; wait_ms = std::min(2 * wait_ms, 100)) {
        // Opened: network file systems then look again.
        ++job.report.traffic.opens;
        if (const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
            ::close(fd);
            return true;
        }
        if (errno != ENOENT && seconds_since(job.start) >= options_.timeout_s) fail_errno(path, "open");
        require(seconds_since(job.start) < options_.timeout_s,
                "%s: is not there after %.0f s: is --out on a file "
                "system that all ranks share?",
                path.c_str(), options_.timeout_s);
        Fibers::wait_a_little(wait_ms);
    }
    return false;
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
            const int64_t bytes = r.elements.size() * size_of(p.dtype);
            compute_.copy(copy_.bytes_at(at), data_of(r, p.part), bytes);
            at += bytes;
        }
    }
    compute_.synchronize();
}

void CheckpointWriter::save(Manifest manifest) {
    settle();
    const auto start = std::chrono::steady_clock::now();
    job_ = std::make_unique<Job>();
    job_->moves();
    // One name on all ranks, new at every attempt.
    uint64_t attempt = uint64_t(start.time_since_epoch().count()) ^ (uint64_t(::getpid()) << 40);
    process_.broadcast(&attempt, 8, 0);
    const std::string id = format("%s-%08llx", manifest.run_id.c_str(), (unsigned long long)(attempt & 0xffffffff));
    job_->folder = store_.temporary(manifest.step, id);
    job_->report.step = manifest.step;
    job_->report.folder = store_.path(manifest.step);
    job_->manifest = std::move(manifest);
    job_->manifest.run_id = id;
    if (!all_in_background_) {  // a rank that waits for its own save must not wait for files that never come
        if (process_.is_root()) prepare_into(*job_);
        int64_t prepared = job_->prepared;
        process_.broadcast(&prepared, 8, 0);
        if (!prepared) {
            job_->report.stall_seconds = seconds_since(start);
            job_->done = true;
            return;
        }
    }
    take_copy();
    job_->report.stall_seconds = seconds_since(start);
    if (options_.background) {
        thread_ = std::thread([this, job = job_.get(), faults = Faults::here()] {
            const FaultScope armed(faults);
            try {
                write(*job);
            } catch (const std::exception&) {  // not even for a message
                job->report.error = "out of memory";
                job->prepared = false;
                job->done = true;
            }
        });
    } else {
        write(*job_);
        job_->report.stall_seconds = seconds_since(start);
    }
}

// What a rank does: its share, its slot; rank 0 then completes the checkpoint. Nothing is thrown from here.
void CheckpointWriter::write(Job& job) {
    device_.make_current();
    std::vector<uint64_t> hashes(parts_.size() * table_.tensors().size(), 0);
    std::string error;
    uint64_t status = kWritten;
    if (process_.is_root() && all_in_background_) prepare_into(job);
    try {
        if (!job.prepared || (!process_.is_root() && !await_files(job))) {
            job.done = true;
            return;
        }
        write_share(job, hashes);
    } catch (const NotFinite& e) {
        error = e.what(), status = kNotFinite;
    } catch (const std::exception& e) {
        error = e.what(), status = kFailed;
    }
    try {
        if (!error.empty()) error = format("rank %d: ", process_.rank()) + error;
        uint64_t below = kWritten;
        const std::string theirs = await_parts(job, hashes, below);
        if (error.empty() && below != kWritten) error = theirs, status = below;
        if (process_.is_root()) {
            if (status == kNotFinite) throw NotFinite(error);
            require(error.empty(), "%s", error.c_str());
            complete(job, hashes);
        } else {
            write_slot(job, hashes, status, error);
        }
    } catch (const NotFinite& e) {
        job.report.error = e.what(), job.report.not_finite = true;
    } catch (const std::exception& e) {  // also: rank 0 has given up and removed the folder
        job.report.error = error.empty() ? e.what() : error;
        job.report.not_finite = status == kNotFinite;
    }
    if (process_.is_root() && !job.report.error.empty()) {
        std::error_code none;
        fs::remove_all(job.folder, none);
    }
    job.report.write_seconds = seconds_since(job.start);
    job.done = true;
}

void CheckpointWriter::write_share(Job& job, std::vector<uint64_t>& hashes) {
    const size_t tensors = table_.tensors().size();
    for (size_t p = 0; p < parts_.size(); ++p)
        for (const TensorFile& in : parts_[p].files) {
            bool writes = process_.is_root();  // it made the file, and syncs it
            for (const OwnedRange& r : share_)
                for_each_piece(table_, r, size_of(parts_[p].dtype),
                               [&](const TensorRun& run) { writes = writes || in.holds(run.tensor); });
            if (writes) write_file(job, parts_[p], in, &hashes[p * tensors]);
        }
}

// hashes: of the part, by tensor
void CheckpointWriter::write_file(Job& job, const PartFile& part, const TensorFile& in, uint64_t* hashes) {
    const int64_t e = size_of(part.dtype);
    std::vector<char> staging(size_t(options_.background ? 0 : kPieceBytes)), back(static_cast<size_t>(kPieceBytes));
    File file(job.folder + "/" + in.path, O_RDWR);
    ++job.report.traffic.opens;
    if ((errno = fault_errno("checkpoint.shard")) != 0) fail_errno(file.path, "write");
    int64_t at = part.at;
    for (const OwnedRange& r : share_) {
        for_each_piece(table_, r, e, [&](const TensorRun& run) {
            if (!in.holds(run.tensor)) return;
            const int64_t within = (run.local - r.local) * e, bytes = run.count * e;
            const void* data = options_.background ? copy_.bytes_at(at + within) : staging.data();
            if (!options_.background) {
                compute_.copy(staging.data(), static_cast<const char*>(data_of(r, part.part)) + within, bytes);
                compute_.synchronize();
            }
            hashes[run.tensor] += sum_hash(data, run.first, run.count, e);
            require_finite(
                data, run.first, run.count, part.dtype,
                format("the state of step %lld is not finite: %s", (long long)job.manifest.step, in.path.c_str()),
                table_.tensors()[size_t(run.tensor)].name);
            write_all(file.fd, in.offset(run.tensor) + run.first * e, data, bytes, file.path);
            job.wrote(bytes);
        });
        at += r.elements.size() * e;
    }
    fault_point("checkpoint.shard.done");
    if ((errno = fault_errno("checkpoint.fsync")) != 0 || ::fsync(file.fd) != 0) fail_errno(file.path, "fsync");
    job.moves();
    // Verified before an older checkpoint may go, by what the disk gives back and not the page cache.
    ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    std::vector<uint64_t> again(size_t(in.tensors), 0);
    for (const OwnedRange& r : share_)
        for_each_piece(table_, r, e, [&](const TensorRun& run) {
            if (!in.holds(run.tensor)) return;
            read_all(file.fd, in.offset(run.tensor) + run.first * e, back.data(), run.count * e, file.path);
            again[size_t(run.tensor - in.first)] += sum_hash(back.data(), run.first, run.count, e);
            job.has_read(run.count * e);
        });
    for (int i = 0; i < in.tensors; ++i)
        require(again[size_t(i)] == hashes[in.first + i], "%s: %s was read back with other contents than were written",
                file.path.c_str(), table_.tensors()[size_t(in.first + i)].name.c_str());
    const int fd = file.fd;
    file.fd = -1;
    if (::close(fd) != 0) fail_errno(file.path, "close");
}

// A rank tries what it does with the file of reports until the deadline, whatever the error: it could not say that it
// gave up, and others would wait for its part as long. A folder that is gone ends that: rank 0 has given up.
static bool worth_another(const std::string& path, std::chrono::steady_clock::time_point start, double limit) {
    struct stat st;
    return seconds_since(start) < limit && (::stat(path.c_str(), &st) == 0 || errno != ENOENT);
}

void CheckpointWriter::write_slot(Job& job, const std::vector<uint64_t>& hashes, uint64_t status, std::string text) {
    const auto start = std::chrono::steady_clock::now();
    const std::string path = job.folder + "/" + kReports;
    const int64_t slot = slot_bytes(hashes.size()) * process_.rank(), bytes = int64_t(hashes.size()) * 8;
    text.resize(std::min<size_t>(text.size(), kSlotText - 1));
    for (int wait_ms = 1;; wait_ms = std::min(2 * wait_ms, 100)) {
        try {
            File reports(path, O_WRONLY);
            ++job.report.traffic.opens;
            write_all(reports.fd, slot + 8, hashes.data(), bytes, path);
            write_all(reports.fd, slot + 8 + bytes, text.c_str(), int64_t(text.size()) + 1, path);
            write_all(reports.fd, slot, &status, 8, path);
            reports.sync_and_close();
            job.wrote(8 + bytes + int64_t(text.size()) + 1);
            return;
        } catch (const std::exception&) {
            if (job.cancelled || !worth_another(path, start, options_.timeout_s)) throw;
        }
        Fibers::wait_a_little(wait_ms);
    }
}

// Adds what rank `rank` and those below it have summed; false where it is not there yet.
bool CheckpointWriter::read_slot(Job& job, int rank, std::vector<uint64_t>& hashes, uint64_t& status,
                                 std::string& text) {
    const int64_t slot = slot_bytes(hashes.size()) * rank, bytes = int64_t(hashes.size()) * 8;
    File reports(job.folder + "/" + kReports, O_RDONLY);  // opened again: network file systems then look again
    ++job.report.traffic.opens;
    uint64_t found = kWriting;
    read_all(reports.fd, slot, &found, 8, reports.path);
    job.has_read(8);
    if (found == kWriting) return false;
    std::vector<uint64_t> theirs(hashes.size());
    char words[kSlotText] = {};
    read_all(reports.fd, slot + 8, theirs.data(), bytes, reports.path);
    read_all(reports.fd, slot + 8 + bytes, words, kSlotText - 1, reports.path);
    job.has_read(bytes + kSlotText - 1);
    for (size_t i = 0; i < hashes.size(); ++i) hashes[i] += theirs[i];
    text = words;
    status = found;
    return true;
}

// Returns what went wrong at rank `rank` and those below it; `status` says how.
std::string CheckpointWriter::await_slot(Job& job, int rank, std::vector<uint64_t>& hashes, uint64_t& status) {
    const auto start = std::chrono::steady_clock::now();
    int below = 0;  // levels: who waits for others is given a little longer than they are
    for (int64_t r = rank; 2 * r + 1 < process_.size(); r = 2 * r + 1) ++below;
    const double limit = options_.timeout_s * (1 + 0.1 * below);
    std::string text;
    for (int wait_ms = 1;; wait_ms = std::min(2 * wait_ms, 100)) {
        try {
            if (read_slot(job, rank, hashes, status, text)) return text;
        } catch (const std::exception& error) {
            if (job.cancelled || !worth_another(job.folder + "/" + kReports, start, limit)) {
                status = kFailed;
                return format("rank %d: ", process_.rank()) + error.what();
            }
        }
        if (seconds_since(start) >= limit) {
            status = kFailed;
            return format("rank %d has not written its part after %.0f s", rank, limit);
        }
        Fibers::wait_a_little(wait_ms);
    }
}

// The two ranks below this one in the tree. What failed is reported when both have written theirs: a rank that has not
// seen the folder yet would wait for it long after it is gone.
std::string CheckpointWriter::await_parts(Job& job, std::vector<uint64_t>& hashes, uint64_t& status) {
    std::string failed;
    for (const int64_t below : {2 * int64_t(process_.rank()) + 1, 2 * int64_t(process_.rank()) + 2}) {
        if (below >= process_.size()) continue;
        uint64_t theirs = kWriting;
        const std::string text = await_slot(job, int(below), hashes, theirs);
        if (theirs != kWritten && failed.empty()) failed = text, status = theirs;
    }
    return failed;
}

void CheckpointWriter::complete(Job& job, const std::vector<uint64_t>& hashes) {
    fault_point("checkpoint.agreed");
    fs::remove(job.folder + "/" + kReports);
    Manifest& m = job.manifest;
    for (size_t p = 0; p < parts_.size(); ++p)
        for (const TensorFile& in : parts_[p].files) {
            ManifestFile f{.path = in.path,
                           .bytes = in.layout.file_size,
                           .hash = text_hash(in.layout.header),
                           .holds_tensors = true,
                           .dtype = parts_[p].dtype,
                           .tensors = {}};
            for (int i = in.first; i < in.first + in.tensors; ++i)
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
    if (options_.mark) store_.mark(m.step);
    store_.publish(m.step, m.run_id);
    try {
        store_.collect(options_.keep, options_.keep_every, m.step);
    } catch (const Error&) {  // an old one that can't be deleted is no reason to call the new one failed
    }
}

// Rank 0 knows whether there are files; the others may be waiting for them.
void CheckpointWriter::settle() {
    if (process_.is_root()) join();
    int64_t prepared = last_prepared_;
    process_.broadcast(&prepared, 8, 0);
    if (job_ && !prepared) job_->cancelled = true;
    join();
}

void CheckpointWriter::join() {
    if (thread_.joinable()) thread_.join();
    if (!job_) return;
    last_ok_ = job_->report.error.empty();
    last_prepared_ = job_->prepared;
    reports_.push_back(job_->report);
    job_.reset();
}

CheckpointWriter::Progress CheckpointWriter::progress() const {
    if (!job_ || job_->done) return {};
    return {job_->report.step, monotonic_clock() - job_->last};
}

std::vector<SaveReport> CheckpointWriter::reports() {
    if (job_ && job_->done && process_.is_root()) join();
    return std::move(reports_);
}

bool CheckpointWriter::finish() {
    settle();
    int64_t ok = last_ok_;
    process_.broadcast(&ok, 8, 0);
    return ok != 0;
}

}  // namespace rz
