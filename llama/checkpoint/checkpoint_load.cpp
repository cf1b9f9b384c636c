// Reading a checkpoint (checkpoint.h).

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "llama/checkpoint/checkpoint.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/checkpoint/finite.h"
#include "llama/model/hf.h"
#include "llama/base/sum_hash.h"

namespace rz {

constexpr int64_t kPiece = kLoadPiece;

namespace {

// The files of a part of the state. Everything they should be is known from the table and from which tensors the
// manifest says are in which: their first bytes are compared, nothing in them is believed.
class PartReader {
   public:
    // new_rows: where rows that the files do not have come from; nullptr: they are zero.
    PartReader(const std::string& folder, const std::vector<const ManifestFile*>& files, const StateArray& array,
               const ParamTable& table, const ParamTable& stored, const HfWeights* new_rows)
        : dtype_(files[0]->dtype), array_(array), table_(table), stored_(stored), new_rows_(new_rows) {
        const size_t tensors = table.tensors().size();
        places_.resize(tensors);
        hashes_.resize(tensors);
        for (const Tensor& t : table.tensors()) {
            if (shape_in(array, table, t).empty()) continue;
            const auto lists = [&](const ManifestFile* f) { return f->tensors.count(t.name) > 0; };
            const auto times = std::count_if(files.begin(), files.end(), lists);
            require(times == 1, "%s/%s: the manifest has %s of %s", folder.c_str(), files[0]->path.c_str(),
                    times == 0 ? "no hash" : "several hashes", t.name.c_str());
        }
        for (const ManifestFile* file : files) add(folder, *file);
    }

    DType dtype() const { return dtype_; }
    const StateArray& array() const { return array_; }
    const std::vector<uint64_t>& hashes() const { return hashes_; }

    int64_t bytes_read() const { return bytes_read_; }

    // Elements of a tensor as they are stored; counted in the hash if no other rank does.
    void read(size_t tensor, int64_t first, int64_t count, bool hash, void* out) {
        const int64_t e = size_of(dtype_);
        const Tensor& t = table_.tensors()[tensor];
        const int64_t old = std::clamp<int64_t>(stored_.tensors()[tensor].size - first, 0, count);
        const OpenFile& file = *places_[tensor].file;
        read_all(file.fd, places_[tensor].offset + first * e, out, old * e, file.path, "resume.shard");
        bytes_read_ += old * e;
        if (hash) hashes_[tensor] += sum_hash(out, first, old, e);
        require_finite(out, first, old, dtype_, file.path, t.name);
        if (old == count) return;
        char* const rest = at(out, old, dtype_);
        if (new_rows_)
            new_rows_->read(t, first + old, count - old, dtype_, rest);
        else
            std::memset(rest, 0, size_t((count - old) * e));
    }

   private:
    void add(const std::string& folder, const ManifestFile& file) {
        const std::string path = folder + "/" + file.path;
        require(file.dtype == dtype_, "%s: holds %s, another file of this part %s", path.c_str(),
                safetensors_type(file.dtype).c_str(), safetensors_type(dtype_).c_str());
        std::vector<TensorSpec> specs;
        std::vector<size_t> held;
        for (size_t i = 0; i < stored_.tensors().size(); ++i) {
            const Tensor& t = stored_.tensors()[i];
            if (file.tensors.count(t.name) == 0) continue;
            specs.push_back({t.name, safetensors_type(dtype_), shape_in(array_, stored_, t)});
            held.push_back(i);
        }
        const SafetensorsLayout layout = layout_safetensors(specs);
        const int fd = again([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
        require(fd >= 0, "%s: can't be opened: %s", path.c_str(), std::strerror(errno));
        files_.emplace_back(path, fd);
        struct stat st;
        require(::fstat(fd, &st) == 0 && int64_t(st.st_size) == layout.file_size,
                "%s: has %ld bytes, the model's tensors need %ld", path.c_str(), st.st_size, layout.file_size);
        std::string head(layout.header.size(), '\0');
        read_all(fd, 0, head.data(), int64_t(head.size()), path, "resume.shard");
        require(head == layout.header, "%s: its header is not that of this model's tensors in %s", path.c_str(),
                safetensors_type(dtype_).c_str());
        for (size_t i = 0; i < held.size(); ++i) places_[held[i]] = {&files_.back(), layout.offsets[i]};
    }

    struct Place {
        const OpenFile* file = nullptr;
        int64_t offset = 0;
    };
    DType dtype_;
    StateArray array_;
    const ParamTable &table_, &stored_;
    const HfWeights* new_rows_;
    std::deque<OpenFile> files_;  // places_ point into it
    std::vector<Place> places_;   // of each tensor
    std::vector<uint64_t> hashes_;
    int64_t bytes_read_ = 0;
};

// One, or one for each unit; none where the checkpoint does not have the part.
std::vector<const ManifestFile*> files_of(const Manifest& manifest, StatePart part) {
    if (const ManifestFile* one = manifest.find(path_of(part)); one && one->holds_tensors) return {one};
    const std::string stem = std::string(stem_of(part)) + "-";
    std::vector<const ManifestFile*> files;
    for (const ManifestFile& f : manifest.files)
        if (f.holds_tensors && f.path.starts_with(stem) && f.path.ends_with(".safetensors")) files.push_back(&f);
    return files;
}

std::vector<const ManifestFile*> listed_files(const Manifest& manifest, StatePart part, const std::string& folder) {
    std::vector<const ManifestFile*> files = files_of(manifest, part);
    require(!files.empty(), "%s/%s: the manifest does not list it", folder.c_str(), path_of(part).c_str());
    return files;
}

// AdamW's checkpoint has a v of every tensor, Muon's of none that it updates.
bool is_of_muon(const Manifest& manifest, const ParamTable& table) {
    const auto matrix = std::find_if(table.tensors().begin(), table.tensors().end(),
                                     [&](const Tensor& t) { return table.is_block_matrix(t); });
    for (const ManifestFile* f : files_of(manifest, StatePart::v))
        if (matrix != table.tensors().end() && f->tensors.count(matrix->name) > 0) return false;
    return matrix != table.tensors().end();
}

// Destination of elements of an owned range.
struct Target {
    void* data;
    DType dtype;
};

// Reads this rank's share of an owned range into `to`, converted; with no data only into the hash.
void read_share(PartReader& reader, const ParamTable& table, const OwnedRange& r, ElementRange share, Target to,
                Buffer& stored, Buffer& converted, Stream& stream) {
    table.for_each_run(r.local_offset + share.begin, r.local_offset + share.end, kPiece,
                       [&](const TensorRun& elements) {
                           const TensorRun run = run_in(reader.array(), r, table, elements);
                           if (run.count == 0 || (!run.owned && to.data == nullptr)) return;
                           reader.read(size_t(run.tensor), run.first, run.count, run.owned, stored.data());
                           if (to.data == nullptr) return;
                           const bool same = reader.dtype() == to.dtype;
                           if (!same)
                               convert(stored.data(), reader.dtype(), converted.data(), to.dtype, run.count,
                                       table.tensors()[size_t(run.tensor)].name.c_str());
                           stream.copy(at(to.data, run.local, to.dtype), same ? stored.data() : converted.data(),
                                       run.count * size_of(to.dtype));
                           stream.synchronize();  // the buffers are filled again
                       });
}

// Every rank that owns a range has the shares that the others have read. What the host keeps (offload) goes through
// memory of the device, a tile at a time: transports move nothing else.
class ShareGather {
   public:
    ShareGather(Zero& zero)
        : zero_(zero),
          owners_(zero.ownership.shard_groups().sharded ? zero.streams.mesh.replicate() : zero.streams.mesh.data()) {
        const ZeroOptions& o = zero.options;
        if (o.offload_optimizer != OffloadOptimizer::none || o.offload_params)
            tile_ = Buffer(zero.streams.device, tile_elements() * 4, MemKind::workspace, "shares of a checkpoint");
    }

    void run() {
        if (owners_.size() == 1) return;
        Stream &comm = zero_.streams.comm(), &compute = zero_.streams.compute;
        comm.wait(compute.record());
        const bool has_masters = zero_.options.master_dtype != zero_.options.param_dtype;
        for (const OwnedRange& r : zero_.optimizer.owned()) {
            const std::vector<int64_t> shares = share_offsets(zero_, r);
            for (const StateArray& array : state_arrays(zero_.options)) {
                if (!(r.*array.where) || (array.part == StatePart::model && has_masters)) continue;
                std::vector<int64_t> offsets;
                for (const int64_t share : shares) offsets.push_back(array.count(r, share));
                gather(comm, r.*array.where, array.dtype, offsets);
            }
        }
        compute.wait(comm.record());
    }

   private:
    int64_t tile_elements() const { return std::max<int64_t>(zero_.options.offload_tile, owners_.size()); }
    void gather(Stream& comm, void* all, DType dtype, const std::vector<int64_t>& shares) {
        const size_t ranks = size_t(owners_.size()), own = size_t(owners_.rank());
        if (!tile_)
            return owners_.all_gather(
                comm, {.out = all, .in = at(all, shares[own], dtype), .offsets = shares, .dtype = dtype});
        const int64_t piece = tile_elements() / int64_t(ranks);
        int64_t longest = 0;
        for (size_t r = 0; r < ranks; ++r) longest = std::max(longest, shares[r + 1] - shares[r]);
        for (int64_t done = 0; done < longest; done += piece) {
            std::vector<int64_t> offsets = {0};
            for (size_t r = 0; r < ranks; ++r)
                offsets.push_back(offsets.back() + std::clamp<int64_t>(shares[r + 1] - shares[r] - done, 0, piece));
            const auto move = [&](size_t r, bool home) {
                void *host = at(all, shares[r] + done, dtype), *here = at(tile_.data(), offsets[r], dtype);
                comm.copy(home ? host : here, home ? here : host, (offsets[r + 1] - offsets[r]) * size_of(dtype));
            };
            move(own, false);
            owners_.all_gather(
                comm,
                {.out = tile_.data(), .in = at(tile_.data(), offsets[own], dtype), .offsets = offsets, .dtype = dtype});
            for (size_t r = 0; r < ranks; ++r)
                if (r != own) move(r, true);
        }
    }

    Zero& zero_;
    Collectives& owners_;
    Buffer tile_;  // where the host keeps the state
};

}  // namespace

std::string first_problem(Process& process, const std::string& own) {
    if (process.max(own.empty() ? 0 : 1) == 0) return "";
    const std::vector<std::string> all = process.all_gather_text(own);
    for (size_t r = 0; r < all.size(); ++r)
        if (!all[r].empty()) return all.size() > 1 ? format("rank %zu: ", r) + all[r] : all[r];
    return "";
}

void on_all(Process& process, const std::function<void()>& body) {
    std::string problem;
    try {
        body();
    } catch (const Error& error) {
        problem = error.what();
    }
    const std::string text = first_problem(process, problem);
    require(text.empty(), "%s", text.c_str());
}

// First tensor that is not the manifest's, among the parts that were read, each with where its hashes begin in `sums`.
static std::string changed_tensor(const std::string& folder, const Manifest& manifest, const ParamTable& table,
                                  const std::vector<std::pair<StatePart, uint64_t>>& order,
                                  const std::vector<uint64_t>& sums) {
    for (const auto& [part, at] : order) {
        const std::vector<const ManifestFile*> files = listed_files(manifest, part, folder);
        for (size_t i = 0; i < table.tensors().size(); ++i) {
            const std::string& name = table.tensors()[i].name;
            for (const ManifestFile* f : files) {
                const auto want = f->tensors.find(name);
                if (want == f->tensors.end() || want->second == sums[at + i]) continue;
                return format(
                    "%s/%s: tensor %s has the hash %016lx, the manifest says %016lx: its contents were changed",
                    folder.c_str(), f->path.c_str(), name.c_str(), sums[at + i], want->second);
            }
        }
    }
    return "";
}

std::string load_state(const std::string& folder, const Manifest& manifest, const ParamTable& table, Process& process,
                       Device device, Stream& compute, Zero& zero, LoadReport* report, const GrownRows* grown) {
    const ZeroOptions& o = zero.options;
    const bool has_master = !files_of(manifest, StatePart::master).empty();
    const bool has_average = !files_of(manifest, StatePart::ema).empty();
    const bool has_rows = !files_of(manifest, StatePart::row_v).empty(), wants_rows = o.muon.beta2 > 0;
    std::vector<std::pair<StatePart, uint64_t>> order;  // part, and where its hashes begin
    for (int p = 0; p < int(StatePart::count_); ++p)
        if ((StatePart(p) != StatePart::master || has_master) &&
            (StatePart(p) != StatePart::ema || (has_average && o.ema > 0)) &&
            (StatePart(p) != StatePart::row_v || (has_rows && wants_rows)))
            order.push_back({StatePart(p), order.size() * table.tensors().size()});
    std::vector<uint64_t> hashes(order.size() * table.tensors().size(), 0);
    const bool of_muon = is_of_muon(manifest, table), starts_momentum = o.muon.on && !of_muon;
    std::string problem;
    try {
        require(o.muon.on || !of_muon, "%s: was saved by --optimizer muon, without what AdamW needs of matrices",
                folder.c_str());
        Buffer stored = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "checkpoint being read");
        Buffer converted = Buffer::host_for(device, kPiece * 4, MemKind::workspace, "checkpoint being converted");
        for (const auto& [part, at] : order) {
            const bool moment = part == StatePart::m || part == StatePart::v, rows = part == StatePart::row_v;
            const StateArray stored_as{.part = part,
                                       .whose = part == StatePart::v && of_muon ? Whose::rest
                                                : rows                          ? Whose::rows
                                                                                : Whose::all};
            PartReader reader(folder, listed_files(manifest, part, folder), stored_as, table,
                              grown ? grown->stored : table, grown && !moment ? &grown->weights : nullptr);
            const DType want = rows ? DType::f32 : moment ? o.adam_dtype : o.master_dtype;  // the average's, too: fp32
            const bool read = part != StatePart::model || !has_master;
            if (report && read && want != reader.dtype())
                report->notes.push_back(format("%s: %s is read as %s", path_of(part).c_str(),
                                               safetensors_type(reader.dtype()).c_str(),
                                               safetensors_type(want).c_str()));
            for (const OwnedRange& r : zero.optimizer.owned()) {
                if ((part == StatePart::v && !r.v && of_muon) || (rows && !r.row_v)) continue;
                const bool starts = part == StatePart::m && starts_momentum && r.matrix >= 0;
                if (starts) compute.zero(r.m, r.elements.size() * size_of(o.adam_dtype));
                const std::vector<int64_t> shares = share_offsets(zero, r);
                const size_t copy = size_t(zero.ownership.shard_groups().replicate.rank);
                void* to = !read || starts          ? nullptr
                           : part == StatePart::m   ? r.m
                           : part == StatePart::v   ? r.v
                           : part == StatePart::ema ? r.ema
                           : rows                   ? r.row_v
                                                    : r.master;
                read_share(reader, table, r, {shares[copy], shares[copy + 1]}, {to, want}, stored, converted, compute);
            }
            if (report) report->bytes_read += reader.bytes_read();
            std::copy(reader.hashes().begin(), reader.hashes().end(), hashes.begin() + int64_t(at));
        }
    } catch (const Error& error) {
        problem = error.what();
    }
    if (const std::string text = first_problem(process, problem); !text.empty()) return text;

    if (const std::string text = changed_tensor(folder, manifest, table, order, process.sums(hashes)); !text.empty())
        return text;
    for (const OwnedRange& r : zero.optimizer.owned())
        if (r.row_v && !has_rows) compute.zero(r.row_v, r.rows_in(r.elements.size()) * 4);
    if (report && o.muon.on && wants_rows != has_rows)
        report->notes.emplace_back(has_rows ? "NorMuon's moments of rows are left behind (--muon-beta2 0)"
                                            : "it has no moments of rows: NorMuon's start at zero");
    if (report && starts_momentum)
        report->notes.emplace_back("it is AdamW's: the momentum of Muon's matrices starts at zero");
    if (report && o.ema > 0 && !has_average)
        report->notes.emplace_back("it has no average of the weights: --ema begins with them");
    if (report && o.ema == 0 && has_average)
        report->notes.emplace_back("its average of the weights is left behind (--ema 0)");
    ShareGather(zero).run();
    if (!has_average) zero.optimizer.begin_average();
    zero.optimizer.all_gather_updated();
    compute.synchronize();
    return "";
}

}  // namespace rz
